"""A compiled kernel as plain values: it travels without the function that it was compiled from, and can be launched."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import triton
from triton.compiler.compiler import CompiledKernel
from triton.runtime.cache import get_cache_manager

_LOADED = (".cubin", ".hsaco", ".json")


@dataclass(frozen=True, slots=True)
class CompileResult:
    """One config for one target.

    target: backend, architecture, threads of a warp; triton: the version that has compiled it, and can load it
    signature, constants, arg_names: what a launcher is made of
    files: those that are loaded, by name
    """

    target: tuple[str, Any, int]
    triton: str
    hash: str
    signature: dict[str, Any]
    constants: dict[Any, Any]
    arg_names: tuple[str, ...]
    files: dict[str, bytes]

    @classmethod
    def of(cls, kernel: Any) -> "CompileResult":
        """That of a kernel which Triton has compiled."""
        at, source = kernel.metadata.target, kernel.src
        constants = {path: value for path, value in source.constants.items() if _is_plain(value)}
        files = {}
        for name, path in kernel.metadata_group.items():
            if name.endswith(_LOADED):
                files[name] = Path(path).read_bytes()
        names = tuple(source.fn.arg_names)
        told = (at.backend, at.arch, at.warp_size)
        return cls(told, triton.__version__, kernel.hash, dict(source.signature), constants, names, files)

    @property
    def is_loadable(self) -> bool:
        """Whether this process's Triton reads it, for the device that it has."""
        at = triton.runtime.driver.active.get_current_target()
        return self.triton == triton.__version__ and self.target == (at.backend, at.arch, at.warp_size)

    def load(self) -> Any:
        """Triton's own kernel; its files are put into Triton's cache."""
        function = SimpleNamespace(arg_names=list(self.arg_names), launch_metadata=None)
        source = SimpleNamespace(fn=function, signature=self.signature, constants=self.constants)
        manager = get_cache_manager(self.hash)
        group: Mapping[str, str] = {name: manager.put(raw, name, binary=True) for name, raw in self.files.items()}
        return CompiledKernel(source, group, self.hash)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)
