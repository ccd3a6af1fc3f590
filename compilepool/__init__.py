"""compilepool: a host-wide compile pool for Triton kernels. Begin with `connect`.

Names are imported when they are first used: the daemon and a forkserver live in this package too, and need no client.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compilepool.client import Pool, connect
    from compilepool.future import CompileFuture
    from compilepool.protocol.errors import (
        CompileCancelled,
        CompileError,
        CompileOutOfMemory,
        CompilePoolError,
        CompileTimeout,
        PoolUnavailable,
        ProtocolError,
        Refused,
        WorkerCrashed,
    )
    from compilepool.triton.autotuner import autotune

__all__ = [
    "CompileCancelled",
    "CompileError",
    "CompileFuture",
    "CompileOutOfMemory",
    "CompilePoolError",
    "CompileTimeout",
    "Pool",
    "PoolUnavailable",
    "ProtocolError",
    "Refused",
    "WorkerCrashed",
    "autotune",
    "connect",
]

_HOMES = {
    "Pool": "compilepool.client",
    "connect": "compilepool.client",
    "CompileFuture": "compilepool.future",
    "autotune": "compilepool.triton.autotuner",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'compilepool' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES.get(name, "compilepool.protocol.errors")), name)
