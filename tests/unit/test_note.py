"""A worker's note survives it, whatever it wrote there."""

import os
from collections.abc import Iterator

import pytest

from compilepool.daemon.worker import note
from compilepool.daemon.worker.note import Note, Step


@pytest.fixture
def kept() -> Iterator[int]:
    descriptor = os.memfd_create("note")
    note.keep_in(descriptor)
    yield descriptor
    note._descriptor = None
    os.close(descriptor)


def test_the_latest_step_and_its_config(kept: int) -> None:
    assert note.read_note(kept) == Note(Step.STARTING, "")
    note.enter(Step.FRONTEND, "XBLOCK: 1024, num_warps: 4")
    note.enter(Step.PTXAS)
    assert note.read_note(kept) == Note(Step.PTXAS, "XBLOCK: 1024, num_warps: 4")
    assert str(note.read_note(kept)) == "in phase ptxas, config XBLOCK: 1024, num_warps: 4"
    note.enter(Step.READING, "")
    assert str(note.read_note(kept)) == "in phase reading the binary"


@pytest.mark.parametrize("written", [b"", b"x", b"\xff" * 512, b"no such step".ljust(512, b"\0")])
def test_what_can_not_be_read_is_no_note(kept: int, written: bytes) -> None:
    os.ftruncate(kept, 0)
    os.pwrite(kept, written, 0)
    assert note.read_note(kept) == Note()


def test_a_long_config_is_cut(kept: int) -> None:
    note.enter(Step.LLVM, "x" * 10_000)
    assert len(note.read_note(kept).config) == 480


def test_outside_a_worker_nothing_is_noted() -> None:
    note.enter(Step.LLVM, "nobody reads it")
