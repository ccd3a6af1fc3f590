"""Triton kernels that were written by hand, compiled by the pool.

compilepool.triton.install()                     every first call of a `@triton.jit` kernel asks the pool
with triton.AsyncCompileMode(Executor()): ...    Triton's own seam (3.4 and later): warm-ups side by side
@compilepool.autotune(configs, key=...)          triton.autotune, with every config compiled side by side
    with bandwidth() as report: ...                  bytes that kernels move, and how fast
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compilepool.triton.executor import Executor
    from compilepool.triton.hook import install, is_installed, uninstall
    from compilepool.triton.traffic import bandwidth

__all__ = ["Executor", "bandwidth", "install", "is_installed", "uninstall"]

_HOMES = {"Executor": "executor", "bandwidth": "traffic"}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'compilepool.triton' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"compilepool.triton.{_HOMES.get(name, 'hook')}"), name)
