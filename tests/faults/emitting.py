"""Writes units into a Triton cache, as compilepool does and as Triton does, and looks at them as Triton does."""

import json
from pathlib import Path

from triton import knobs
from triton.runtime.cache import FileCacheManager

from compilepool.emit import emit
from compilepool.protocol.contents import checksum
from compilepool.protocol.messages import Contents, Cost, Unit

METADATA = "k.json"


def name_of(number: int) -> str:
    """A cache key."""
    return f"KEY{number:049d}"


def files_of(number: int) -> dict[str, bytes]:
    """What belongs there."""
    return {"k.cubin": number.to_bytes(4, "big") * 2000, METADATA: json.dumps({"number": number}).encode()}


def contents(number: int) -> tuple[Contents, list[bytes]]:
    """As an answer."""
    files = files_of(number)
    segments = [b"pickle", *files.values()]
    unit = Unit("", "0" * 64, name_of(number), list(files))
    return Contents([unit], [], [checksum(part) for part in segments], Cost(0.0, 0.0, 0)), segments


def write(how: str, number: int, cache: Path) -> None:
    """Write it, whoever else does."""
    if how == "compilepool":
        emit(*contents(number), cache)
        return
    knobs.cache.dir = str(cache)
    manager = FileCacheManager(name_of(number))
    group = {name: manager.put(raw, name, binary=True) for name, raw in files_of(number).items()}
    manager.put_group(METADATA, group)


def look(number: int, cache: Path) -> bool:
    """Whether Triton finds it there, and whole."""
    knobs.cache.dir = str(cache)
    group = FileCacheManager(name_of(number)).get_group(METADATA)
    return group is not None and {name: Path(path).read_bytes() for name, path in group.items()} == files_of(number)


def is_complete(directory: Path) -> bool:
    """Whether everything is there that belongs there."""
    return {path.name for path in directory.iterdir()} >= {"k.cubin", METADATA, f"__grp__{METADATA}"}
