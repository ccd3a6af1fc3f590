"""Puts an answer's files into Triton's cache directory, and finds them there.

A unit's directory is made complete beside its place, group file and all, and renamed: whoever looks sees all of it or
nothing, and a program that dies half-way leaves a directory whose name no cache looks for. The group file is what
Triton looks for first, and it holds absolute paths, so it is written here and never travels. Where the directory is
there already, whole files are left alone and damaged ones replaced, each by a rename, the group file last.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from compilepool.protocol.contents import DamagedContents, checksum
from compilepool.protocol.messages import Contents, Unit

_PREFIX = "tmp.compilepool-"


def gather(contents: Contents, pickled: bytes, cache: Path) -> list[bytes] | None:
    """All segments of an answer that came without its files, if they are in the cache, whole; otherwise None."""
    segments = [pickled]
    expected = iter(contents.checksums[1:])
    for unit in contents.units:
        directory = cache / unit.directory
        if not _names_all(_group(directory, unit), unit, directory):
            return None
        for name in unit.files:
            raw = _read(directory / name)
            if raw is None or checksum(raw) != next(expected):
                return None
            segments.append(raw)
    return segments


def emit(contents: Contents, segments: Sequence[bytes], cache: Path) -> dict[str, bytes]:
    """Write the units' files below `cache`, unless they are there; what is there now, by 'directory/name'.

    Raises OSError when they can't be written.
    """
    for unit, files in _of_units(contents, segments):
        _emit_unit(unit, files, cache)
    return files_of(contents, segments)


def files_of(contents: Contents, segments: Sequence[bytes]) -> dict[str, bytes]:
    """An answer's files, by 'directory/name'."""
    parts = _of_units(contents, segments)
    return {f"{unit.directory}/{name}": raw for unit, files in parts for name, raw in files.items()}


def write_file(path: Path, raw: bytes) -> None:
    """Write beside the place, and rename."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=_PREFIX)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(raw)
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


def _of_units(contents: Contents, segments: Sequence[bytes]) -> Iterator[tuple[Unit, dict[str, bytes]]]:
    files = iter(segments[1:])
    for unit in contents.units:
        yield unit, {name: next(files) for name in unit.files}


def _emit_unit(unit: Unit, files: dict[str, bytes], cache: Path) -> None:
    directory = cache / unit.directory
    if not directory.exists() and _emit_directory(unit, files, directory):
        return
    group = _group(directory, unit)
    damaged = {name: raw for name, raw in files.items() if _read(directory / name) != raw}
    if not damaged and _names_all(group, unit, directory):
        return
    directory.mkdir(parents=True, exist_ok=True)
    for name, raw in damaged.items():
        write_file(directory / name, raw)
    write_file(group, _group_text(files, directory))


def _emit_directory(unit: Unit, files: dict[str, bytes], directory: Path) -> bool:
    """Whether the complete directory could be put there: not if another was faster."""
    made = _make_beside(directory)
    try:
        for name, raw in files.items():
            (made / name).write_bytes(raw)
        _group(made, unit).write_bytes(_group_text(files, directory))
        made.rename(directory)
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        if not directory.exists():
            raise
        return False
    return True


def _make_beside(directory: Path) -> Path:
    """A new directory with a name that no cache looks for; as open to others as Triton's own (mkdtemp's are not)."""
    made = directory.with_name(f"{_PREFIX}{os.urandom(8).hex()}")
    try:
        made.mkdir()
    except FileNotFoundError:
        made.mkdir(parents=True)
    return made


def _group(directory: Path, unit: Unit) -> Path:
    for name in unit.files:
        if name.endswith(".json"):
            return directory / f"__grp__{name}"
    raise DamagedContents(f"{unit.directory} has no metadata")


def _group_text(files: dict[str, bytes], directory: Path) -> bytes:
    return json.dumps({"child_paths": {name: str(directory / name) for name in files}}).encode()


def _names_all(group: Path, unit: Unit, directory: Path) -> bool:
    """Whether the group file names the unit's files where they are, so that Triton finds them."""
    try:
        children = json.loads(group.read_bytes())["child_paths"]
        return all(children[name] == str(directory / name) for name in unit.files)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
