"""Puts the hook into torch and takes it out, as early and as cheaply as can be.

`torch._inductor` takes seconds to import and most programs that import torch never need it. So the hook is put in when
`torch._inductor.async_compile` is imported, by a finder that waits for that one name and then goes away. What takes
long, a forkserver that imports torch, is started at once, in a process of its own.
"""

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from compilepool.inductor.prepare import start_forkserver
from compilepool.inductor.versions import KNOWN, is_known
from compilepool.once import SayOnce

ASYNC_COMPILE = "torch._inductor.async_compile"


def install() -> None:
    """Let torch.compile use the pool, now or as soon as its compiler is imported; safe to call again."""
    import torch

    if not is_known(torch.__version__):
        _say_unknown(KNOWN, torch.__version__)
        return
    start_forkserver(os.environ)
    if (module := sys.modules.get(ASYNC_COMPILE)) is not None:
        _hook(module)
    elif not any(isinstance(finder, _OnImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _OnImport())


def uninstall() -> None:
    """Leave torch as it was before `install`; what is still compiling is compiled by torch's own pool."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _OnImport)]
    if ASYNC_COMPILE in sys.modules and "compilepool.inductor.hook" in sys.modules:
        from compilepool.inductor import hook

        hook.remove()


def installed() -> bool:
    """Whether torch.compile uses the pool, or will when its compiler is imported."""
    hook = sys.modules.get("compilepool.inductor.hook")
    return any(isinstance(finder, _OnImport) for finder in sys.meta_path) or bool(hook and hook.is_in_place())


def _hook(module: ModuleType) -> None:
    from compilepool.inductor import hook

    hook.put_in(module)


_say_unknown = SayOnce("compilepool knows torch %s, not %s: torch.compile keeps torch's own compile pool")


class _OnImport(MetaPathFinder):
    """Finds nothing itself, and is told when the one module has been executed."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the import system's signature
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """The spec that the others find, with a loader that calls the hook afterwards."""
        if fullname != ASYNC_COMPILE:
            return None
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenHook(spec.loader)
        return spec


class _ThenHook(Loader):
    """Another loader, and the hook after it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the other does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute it, leave it with its own loader, and put the hook in."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        _hook(module)
