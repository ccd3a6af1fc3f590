"""What must be true of a job's contents before anybody stores or unpacks them: whole, and naming only plain files.

The daemon checks what a forkserver sends, the store what it reads, the client what it is about to write.
"""

import hashlib
import re
from collections.abc import Sequence

from compilepool.protocol.frames import Buffer
from compilepool.protocol.messages import Contents, Unit

# Triton's cache directories are base32 (or hexadecimal) hashes; its files are a kernel's name and an extension.
_DIRECTORY = re.compile(r"[A-Za-z0-9_-]{16,128}")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}")


class DamagedContents(Exception):
    """Contents that differ from their checksums or name something that is no plain file in a cache directory."""


def checksum(segment: Buffer) -> str:
    """SHA-256 of a segment, in hexadecimal."""
    return hashlib.sha256(segment).hexdigest()


def verify(contents: Contents, segments: Sequence[Buffer]) -> None:
    """Raise DamagedContents unless every segment has its checksum and every name is plain."""
    verify_names(contents)
    if len(segments) != len(contents.checksums):
        raise DamagedContents(f"{len(segments)} segments for {len(contents.checksums)} checksums")
    for index, (segment, expected) in enumerate(zip(segments, contents.checksums, strict=True)):
        if checksum(segment) != expected:
            raise DamagedContents(f"segment {index} is damaged: its checksum is not {expected}")


def verify_names(contents: Contents) -> None:
    """Raise DamagedContents unless every name is plain."""
    for unit in contents.units:
        _verify_names(unit)


def _verify_names(unit: Unit) -> None:
    if not _DIRECTORY.fullmatch(unit.directory):
        raise DamagedContents(f"{unit.directory!r} is no name of a cache directory")
    for name in unit.files:
        if not _FILE.fullmatch(name):
            raise DamagedContents(f"{name!r} is no name of a cached file")
