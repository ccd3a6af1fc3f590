"""Describes the toolchain of this process without importing torch or triton.

Client and forkserver must describe themselves alike, so both call this. Files are identified by path, size and
modification time: reading the 300 MB of libtriton would take a second, and an equal description of different files
would need an install that keeps all three.
"""

import functools
import hashlib
import importlib.util
import os
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from compilepool.protocol.environment import LIBRARY_VARIABLES
from compilepool.protocol.toolchain import NO_TORCH, Toolchain


class NoToolchain(Exception):
    """A package that compiling needs is not installed here."""


# What of each package takes part in compiling; the rest of torch is 4 GB that does not.
TAKES_NO_PART = ("__pycache__", "README.md")
COMPILES = {"triton": ("",), "torch": ("version.py", "_inductor", "bin", "utils/_triton.py")}


@functools.cache
def detect(*, with_torch: bool = True) -> Toolchain:
    """This process's toolchain; raises NoToolchain with what to install.

    with_torch: for kernels of torch.compile; those that were written by hand need none, nor does a backend
    """
    return Toolchain(
        python=f"{platform.python_implementation()} {platform.python_version()} {sys.implementation.cache_tag}",
        executable=sys.executable,
        platform=f"{sys.platform}-{platform.machine()}",
        triton=_describe("triton"),
        torch=_describe("torch") if with_torch else NO_TORCH,
        libraries=" ".join(f"{name}={os.environ[name]}" for name in LIBRARY_VARIABLES if os.environ.get(name)),
        compilepool=_described(Path(__file__).parents[1], version("compilepool"), ("daemon/worker", "protocol")),
    )


def package_root(name: str) -> Path:
    """Directory of an installed top-level package, found without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise NoToolchain(f"{name} is not installed for {sys.executable}: pip install 'compilepool[torch]'")
    return Path(spec.origin).parent


def _describe(name: str) -> str:
    root = package_root(name)
    try:
        release = version(name)
    except PackageNotFoundError:
        release = "unknown"
    return _described(root, release, COMPILES[name])


def _described(root: Path, release: str, parts: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for line in sorted(line for part in parts for line in _files(str(root / part), str(root))):
        digest.update(line.encode())
    return f"{release} at {root} ({digest.hexdigest()[:16]})"


def _files(path: str, root: str) -> Iterator[str]:
    if os.path.isfile(path):
        status = os.stat(path)
        yield f"{path[len(root) :]}\0{status.st_size}\0{status.st_mtime_ns}\n"
    elif os.path.isdir(path):
        for entry in os.scandir(path):
            if entry.name not in TAKES_NO_PART:
                yield from _files(entry.path, root)
