"""Reads off a device binary what its driver would say when it loads it: registers and spills.

    cubin   ELF; the attributes EIATTR_REGCOUNT and EIATTR_FRAME_SIZE in `.nv.info`. The tags are those that `cuobjdump
            -elf` prints; NVIDIA documents the file no further.
    hsaco   ELF; the note NT_AMDGPU_METADATA, a MessagePack map (LLVM's AMDGPU usage guide, "Code Object V3 Metadata")

A binary that can't be read this way has no registers here (None), and torch asks the driver, as it always did.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from compilepool.daemon.worker.files import read_plain

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NOTE = struct.Struct("<III")
_SHT_NOTE = 7
_EIATTR_FRAME_SIZE, _EIATTR_REGCOUNT = 0x11, 0x2F
# An attribute's format: without a value, one byte, two bytes, or a length and so many bytes.
_FORMAT_SIZED = 0x04
_NT_AMDGPU_METADATA = 32


@dataclass(frozen=True, slots=True)
class Resources:
    """What one thread of a kernel takes: registers, and 32-bit words that are spilled to memory."""

    registers: int
    spills: int


def resources(directory: Path) -> Resources | None:
    """Of the kernel whose files lie in this directory of a Triton cache; None if its binary does not say."""
    for path in directory.iterdir():
        reader = _READERS.get(path.suffix)
        if reader is not None:
            try:
                return reader(read_plain(path))
            except (struct.error, ValueError, KeyError, IndexError, msgspec.DecodeError):
                return None
    return None


def read_cubin(raw: bytes) -> Resources | None:
    """Registers and spills of the only kernel in a cubin."""
    info = next((section for name, _, section in _sections(raw) if name == ".nv.info"), b"")
    values = dict(_attributes(info))
    if _EIATTR_REGCOUNT not in values:
        return None
    # A stack frame holds what is spilled; Triton's kernels have nothing else in it.
    return Resources(values[_EIATTR_REGCOUNT], values.get(_EIATTR_FRAME_SIZE, 0) // 4)


def read_hsaco(raw: bytes) -> Resources | None:
    """Registers and spills of the only kernel in an AMD code object."""
    for _, kind, section in _sections(raw):
        if kind == _SHT_NOTE:
            for number, described in _notes(section):
                if number == _NT_AMDGPU_METADATA:
                    (kernel,) = msgspec.msgpack.decode(described)["amdhsa.kernels"]
                    return Resources(kernel[".vgpr_count"], kernel.get(".vgpr_spill_count", 0))
    return None


_READERS: dict[str, Callable[[bytes], Resources | None]] = {".cubin": read_cubin, ".hsaco": read_hsaco}


def _sections(raw: bytes) -> Iterator[tuple[str, int, bytes]]:
    """Name, type and bytes of each section."""
    header = _HEADER.unpack_from(raw)
    at, count, names_index = header[6], header[12], header[13]
    table = [_SECTION.unpack_from(raw, at + index * _SECTION.size) for index in range(count)]
    names = _bytes_of(raw, table[names_index])
    for section in table:
        start = section[0]
        yield names[start : names.index(b"\0", start)].decode(), section[1], _bytes_of(raw, section)


def _bytes_of(raw: bytes, section: tuple[int, ...]) -> bytes:
    offset, size = section[4], section[5]
    return raw[offset : offset + size]


def _attributes(info: bytes) -> Iterator[tuple[int, int]]:
    """Tag and value of the attributes that speak of a symbol: the value is the word after its index."""
    at = 0
    while at + 4 <= len(info):
        shape, tag, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if shape == _FORMAT_SIZED:
            if size == 8:
                yield tag, struct.unpack_from("<II", info, at)[1]
            at += size


def _notes(section: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _NOTE.size <= len(section):
        name_size, size, number = _NOTE.unpack_from(section, at)
        at += _NOTE.size + _aligned(name_size)
        yield number, section[at : at + size]
        at += _aligned(size)


def _aligned(size: int) -> int:
    return (size + 3) & ~3
