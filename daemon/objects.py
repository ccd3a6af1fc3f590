"""One object of the store: what a job yielded, in one file that proves itself.

    "CPO3" | length of the header, u32 | SHA-256 of the header | header | segments, one after the other

The header (a `Sealed`, as msgpack) names whose it is and what it is about, and has the size of each segment; the
contents in it have a checksum of each. Segments that people read (IR) are compressed. Objects never change: a file is
written beside its place and renamed, and whatever does not hold its checksums is no object.
"""

import hashlib
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from compilepool.protocol.contents import DamagedContents, verify, verify_names
from compilepool.protocol.messages import Contents, Identity

_MAGIC = b"CPO3"
_PRELUDE = struct.Struct(">4sI32s")
# A header has some 150 bytes for each file.
_HEADER_BYTES = 4 << 20
_TEXT = (".ttir", ".ttgir", ".llir", ".ptx", ".amdgcn", ".source")
# A segment of this size and more was never written: the largest answer has 512 MiB.
_SEGMENT_BYTES = 1 << 30


class Sealed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An object's header.

    key: under which it is stored; owner: whose it is
    created: seconds since 1970
    sizes: of the segments, as they are in the file; packed: which of them are compressed
    """

    key: str
    owner: str
    identity: Identity
    contents: Contents
    created: float
    sizes: list[int]
    packed: list[bool]


@dataclass(frozen=True, slots=True)
class Stored:
    """The contents of one job with their segments."""

    contents: Contents
    segments: tuple[bytes, ...]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Sealed).decode


def render(key: str, owner: str, identity: Identity, stored: Stored, created: float) -> bytes:
    """The bytes of an object."""
    names = ["", *(name for unit in stored.contents.units for name in unit.files)]
    packed = [name.endswith(_TEXT) for name in names]
    segments = [
        zlib.compress(segment, 1) if pack else segment for segment, pack in zip(stored.segments, packed, strict=True)
    ]
    sealed = Sealed(key, owner, identity, stored.contents, created, [len(segment) for segment in segments], packed)
    header = _encode(sealed)
    return b"".join([_PRELUDE.pack(_MAGIC, len(header), hashlib.sha256(header).digest()), header, *segments])


def parse(raw: bytes) -> tuple[Sealed, Stored]:
    """An object from its bytes; raises DamagedContents if it would not be what was written."""
    sealed, start = _parse_header(raw)
    if start + sum(sealed.sizes) != len(raw):
        raise DamagedContents(f"it has {len(raw)} bytes, and {start + sum(sealed.sizes)} were written")
    segments = []
    for size, pack in zip(sealed.sizes, sealed.packed, strict=True):
        segment = raw[start : start + size]
        segments.append(_unpack(segment) if pack else segment)
        start += size
    verify(sealed.contents, segments)
    return sealed, Stored(sealed.contents, tuple(segments))


def read_header(path: Path) -> Sealed:
    """What an object is about, without its segments; raises DamagedContents, OSError."""
    with path.open("rb") as file:
        raw = file.read(64 << 10)
        if len(raw) >= _PRELUDE.size:
            raw += file.read(max(0, _PRELUDE.size + min(_HEADER_BYTES, _PRELUDE.unpack_from(raw)[1]) - len(raw)))
    return _parse_header(raw)[0]


def _parse_header(raw: bytes) -> tuple[Sealed, int]:
    if len(raw) < _PRELUDE.size:
        raise DamagedContents(f"it has only {len(raw)} bytes")
    magic, length, digest = _PRELUDE.unpack_from(raw)
    if magic != _MAGIC or length > _HEADER_BYTES:
        raise DamagedContents("it is no object of this version")
    header = raw[_PRELUDE.size : _PRELUDE.size + length]
    if hashlib.sha256(header).digest() != digest:
        raise DamagedContents("its header's checksum does not hold")
    try:
        sealed = _decode(header)
    except (msgspec.ValidationError, msgspec.DecodeError) as exc:
        raise DamagedContents(f"it is no object of this version: {exc}") from exc
    if not len(sealed.sizes) == len(sealed.packed) == len(sealed.contents.checksums):
        raise DamagedContents("its header contradicts itself")
    verify_names(sealed.contents)
    return sealed, _PRELUDE.size + length


def _unpack(segment: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        unpacked = unpacker.decompress(segment, _SEGMENT_BYTES)
    except zlib.error as exc:
        raise DamagedContents(f"a compressed segment is damaged: {exc}") from exc
    if not unpacker.eof or unpacker.unused_data:
        raise DamagedContents("a compressed segment does not end where it should")
    return unpacked


def publish(raw: bytes, path: Path, temporary: Path) -> None:
    """Write an object at `temporary`, on the same filesystem, and rename it to its place; raises OSError."""
    try:
        with temporary.open("xb") as file:
            file.write(raw)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
