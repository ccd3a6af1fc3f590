"""What arrives is checked before anything is loaded, and written as Triton would have written it."""

import json
from pathlib import Path

import pytest

from compilepool.emit import emit, gather
from compilepool.kernel import wanted
from compilepool.protocol.contents import checksum
from compilepool.protocol.errors import PoolUnavailable
from compilepool.protocol.messages import Contents, Cost, Unit
from compilepool.protocol.portable import dump_portable
from compilepool.reload import reload_autotuner

DIRECTORY = "D" * 52
SEGMENTS = (dump_portable("no autotuner", {}), b"binary", b'{"name": "k"}')


def contents(*segments: bytes, files: tuple[str, ...] = ("k.cubin", "k.json")) -> Contents:
    return Contents([Unit("", "00", DIRECTORY, list(files))], [], [checksum(s) for s in segments], Cost(0.0, 0.0, 0))


def test_files_and_group_file(tmp_path: Path) -> None:
    emit(contents(*SEGMENTS), SEGMENTS, tmp_path)
    group = json.loads((tmp_path / DIRECTORY / "__grp__k.json").read_text())["child_paths"]
    assert {name: Path(path).read_bytes() for name, path in group.items()} == {
        "k.cubin": b"binary",
        "k.json": b'{"name": "k"}',
    }
    assert all(Path(path).is_absolute() for path in group.values())


def test_what_is_there_and_whole_is_left_alone(tmp_path: Path) -> None:
    emit(contents(*SEGMENTS), SEGMENTS, tmp_path)
    before = {path: path.stat().st_ino for path in (tmp_path / DIRECTORY).iterdir()}
    emit(contents(*SEGMENTS), SEGMENTS, tmp_path)
    assert {path: path.stat().st_ino for path in (tmp_path / DIRECTORY).iterdir()} == before


@pytest.mark.parametrize("file", ["k.cubin", "k.json", "__grp__k.json"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing"])
def test_what_is_there_and_damaged_is_mended(tmp_path: Path, damage: str, file: str) -> None:
    told = contents(*SEGMENTS)
    emit(told, SEGMENTS, tmp_path)
    damaged = tmp_path / DIRECTORY / file
    whole = damaged.read_bytes()
    if damage == "missing":
        damaged.unlink()
    else:
        damaged.write_bytes(whole[:-1] if damage == "truncated" else b"X" + whole[1:])
    assert gather(told, SEGMENTS[0], tmp_path) is None
    emit(told, SEGMENTS, tmp_path)
    assert damaged.read_bytes() == whole
    assert gather(told, SEGMENTS[0], tmp_path) == list(SEGMENTS)


def test_a_directory_without_its_group_file_is_completed(tmp_path: Path) -> None:
    """As a program that died half-way leaves it, where it writes file by file."""
    (tmp_path / DIRECTORY).mkdir()
    (tmp_path / DIRECTORY / "k.cubin").write_bytes(b"half")
    emit(contents(*SEGMENTS), SEGMENTS, tmp_path)
    assert gather(contents(*SEGMENTS), SEGMENTS[0], tmp_path) == list(SEGMENTS)


def test_a_cache_that_was_moved_is_none(tmp_path: Path) -> None:
    """Group files hold absolute paths."""
    emit(contents(*SEGMENTS), SEGMENTS, tmp_path / "before")
    (tmp_path / "before").rename(tmp_path / "after")
    assert gather(contents(*SEGMENTS), SEGMENTS[0], tmp_path / "after") is None
    emit(contents(*SEGMENTS), SEGMENTS, tmp_path / "after")
    assert gather(contents(*SEGMENTS), SEGMENTS[0], tmp_path / "after") == list(SEGMENTS)


@pytest.mark.parametrize(
    ("segments", "told", "says"),
    [
        ((*SEGMENTS[:2], b"{}"), contents(*SEGMENTS), "segment 2 is damaged"),
        ((b"no pickle", *SEGMENTS[1:]), contents(b"no pickle", *SEGMENTS[1:]), "damaged"),
        ((b"", *SEGMENTS[1:]), contents(b"", *SEGMENTS[1:]), "damaged"),
        (SEGMENTS, contents(*SEGMENTS, files=("k.cubin", "k.ptx")), "no metadata"),
    ],
)
def test_a_damaged_answer_is_never_loaded(segments: tuple[bytes, ...], told: Contents, says: str) -> None:
    with pytest.raises(PoolUnavailable, match=says):
        reload_autotuner(wanted("k", "source"), told, segments)


def test_a_cache_that_cant_be_written_is_the_pools_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(PoolUnavailable, match="can't be written"):
        reload_autotuner(wanted("k", "source"), contents(*SEGMENTS), SEGMENTS)
