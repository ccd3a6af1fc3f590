"""Where a worker is, written where its forkserver can read it, whatever becomes of the worker.

    STARTING -> UNPICKLING (a call), or EXECUTING -> (FRONTEND -> LLVM -> PTXAS or LINKING), for each config, -> READING
             -> PICKLING -> ANSWERING

The note is one record in a memory file of the worker's own, overwritten at each step: a worker that is killed has still
said which config it was compiling, and which of the compilers was at it.
"""

import os
import struct
from dataclasses import dataclass
from enum import Enum


class Step(Enum):
    """What a worker does, in the words of an error message."""

    STARTING = "starting"
    UNPICKLING = "unpickling"
    EXECUTING = "executing the source"
    FRONTEND = "frontend"
    LLVM = "llvm"
    PTXAS = "ptxas"
    LINKING = "lld"
    WAITING = "waiting for an assistant"
    SHARING = "waiting for the service's backend"
    READING = "reading the binary"
    PICKLING = "pickling"
    ANSWERING = "answering"


_RECORD = struct.Struct("32s480s")
_descriptor: int | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """The step, and the config that it is about ('' for the whole kernel)."""

    step: Step = Step.STARTING
    config: str = ""

    def __str__(self) -> str:
        about = f", config {self.config}" if self.config else ""
        return f"in phase {self.step.value}{about}"


def keep_in(descriptor: int) -> None:
    """From here on this process's notes go there."""
    global _descriptor
    _descriptor = descriptor


def enter(step: Step, config: str | None = None) -> None:
    """A step begins; `config` of None: about the same as before. Outside a worker nothing is noted."""
    if _descriptor is None:
        return
    if config is None:
        config = read_note(_descriptor).config
    os.pwrite(_descriptor, _RECORD.pack(step.value.encode(), config.encode()[:480]), 0)


def read_note(descriptor: int) -> Note:
    """The latest note of a worker, which may have written anything there."""
    record = os.pread(descriptor, _RECORD.size, 0)
    if len(record) < _RECORD.size:
        return Note()
    step, config = (field.rstrip(b"\0").decode(errors="replace") for field in _RECORD.unpack(record))
    try:
        return Note(Step(step), config)
    except ValueError:
        return Note()
