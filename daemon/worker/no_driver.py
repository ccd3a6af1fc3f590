"""Takes the place of NVIDIA's driver library in a forkserver, so that nothing in it can reach a GPU.

To import torch's CUDA build is enough to have the driver mapped: initialisers of libcublasLt and libcusparseLt call
`dlopen("libcuda.so.1")` (seen with LD_DEBUG=files, torch 2.11+cu130), and whoever then calls cuInit opens /dev/nvidia*
and starts a thread. glibc answers a dlopen from the libraries that are loaded already, by their SONAME: so an empty
library of that name is loaded first, and who asks for the driver finds one without a single function.

The library is a few hundred bytes: one segment that holds a dynamic section with a name, an empty symbol table and an
empty hash table. (ELF-64 Object File Format; System V gABI, chapter 5.)
"""

import ctypes
import os
import struct
from pathlib import Path

DRIVERS = ("libcuda.so.1", "libnvidia-ml.so.1")

_HEADER, _SEGMENT, _SYMBOL, _ENTRY = (
    struct.Struct("<16sHHIQQQIHHHHHH"),
    struct.Struct("<IIQQQQQQ"),
    24,
    struct.Struct("<qQ"),
)
_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK = 1, 2, 0x6474E551
_READ_WRITE, _ET_DYN, _PAGE = 6, 3, 0x1000
_DT_NULL, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 0, 4, 5, 6, 10, 11, 14


def occupy() -> None:
    """Load an empty library under each driver's name; before the first import of torch, and for good."""
    # Open all at once: the loader knows a library by its path too, and a descriptor's number is used again.
    descriptors = {name: os.memfd_create("compilepool-no-driver") for name in DRIVERS}
    try:
        for name, descriptor in descriptors.items():
            os.write(descriptor, empty_library(name))
            ctypes.CDLL(f"/proc/self/fd/{descriptor}")
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)


def empty_library(soname: str, like: Path = Path("/proc/self/exe")) -> bytes:
    """A shared object with this name and nothing in it, for the machine that `like` is for."""
    with like.open("rb") as file:
        identity, _, machine = struct.unpack("<16sHH", file.read(20))
    strings = b"\0" + soname.encode() + b"\0"
    segments = 3
    at_symbols = _HEADER.size + segments * _SEGMENT.size
    at_hash = at_symbols + _SYMBOL
    at_dynamic = at_hash + 16
    dynamic = _dynamic_section(at_hash, at_symbols, at_dynamic, len(strings))
    size = at_dynamic + len(dynamic) + len(strings)
    header = _HEADER.pack(
        identity, _ET_DYN, machine, 1, 0, _HEADER.size, 0, 0, _HEADER.size, _SEGMENT.size, segments, 0, 0, 0
    )
    table = b"".join(
        (
            _SEGMENT.pack(_PT_LOAD, _READ_WRITE, 0, 0, 0, size, size, _PAGE),
            _SEGMENT.pack(_PT_DYNAMIC, _READ_WRITE, at_dynamic, at_dynamic, at_dynamic, len(dynamic), len(dynamic), 8),
            # Without it, the loader takes the library to need an executable stack.
            _SEGMENT.pack(_PT_GNU_STACK, _READ_WRITE, 0, 0, 0, 0, 0, 16),
        )
    )
    # One bucket and one chain, both of the null symbol.
    return header + table + bytes(_SYMBOL) + struct.pack("<IIII", 1, 1, 0, 0) + dynamic + strings


def _dynamic_section(at_hash: int, at_symbols: int, at_dynamic: int, strings: int) -> bytes:
    entries = 7
    at_strings = at_dynamic + entries * _ENTRY.size
    return b"".join(
        (
            _ENTRY.pack(_DT_SONAME, 1),
            _ENTRY.pack(_DT_HASH, at_hash),
            _ENTRY.pack(_DT_STRTAB, at_strings),
            _ENTRY.pack(_DT_STRSZ, strings),
            _ENTRY.pack(_DT_SYMTAB, at_symbols),
            _ENTRY.pack(_DT_SYMENT, _SYMBOL),
            _ENTRY.pack(_DT_NULL, 0),
        )
    )
