"""A toolchain as it is on any host: what is in its files, and not where they lie or when they were written.

Reading them takes a second; so only who packs or unpacks a bundle asks, and everybody else identifies files by path,
size and modification time (`protocol.detect`).
"""

import hashlib
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import msgspec

from compilepool.protocol.detect import COMPILES, TAKES_NO_PART, package_root

_CHUNK = 1 << 20


class PortableToolchain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What decides which binary a source becomes: versions, and a digest of every file that compiles."""

    python: str
    platform: str
    triton: str
    torch: str

    def differences(self, other: "PortableToolchain") -> list[str]:
        """One line for each field in which the two differ: 'field: mine, not theirs'."""
        return [
            f"{field}: {getattr(self, field)}, not {getattr(other, field)}"
            for field in self.__struct_fields__
            if getattr(self, field) != getattr(other, field)
        ]


def detect_portable() -> PortableToolchain:
    """This process's toolchain; raises NoToolchain."""
    return PortableToolchain(
        python=f"{platform.python_implementation()} {sys.implementation.cache_tag}",
        platform=f"{sys.platform}-{platform.machine()}",
        triton=_described("triton"),
        torch=_described("torch"),
    )


def _described(package: str) -> str:
    root, digest = package_root(package), hashlib.sha256()
    for path in sorted(path for part in COMPILES[package] for path in _files(root / part)):
        digest.update(f"{path.relative_to(root)}\0".encode())
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return f"{version(package)} ({digest.hexdigest()[:16]})"


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir() and path.name not in TAKES_NO_PART:
        for entry in path.iterdir():
            if entry.name not in TAKES_NO_PART:
                yield from _files(entry)
