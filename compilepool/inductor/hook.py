"""The one attribute of torch that is replaced, the one variable that is set, and how they are put back.

torch calls `AsyncCompile.process_pool()` for its pool (cached, and reset by `cache_clear` after a fork), and submits
callables to what it gets. Ours has the same shape and answers with an `InductorPool` where torch would start a
SubprocPool. `AsyncCompile.use_process_pool`, `wakeup`, `warm_pool`, `shutdown_compile_workers` and the fork handler all
go through it, and stay as they are.
"""

import functools
import os
import sys
from dataclasses import dataclass
from multiprocessing import util
from types import ModuleType
from typing import Any

from compilepool.inductor.pool import InductorPool
from compilepool.options import Options
from compilepool.protocol.rendezvous import default_socket

# A greeting and an answer are a millisecond each; torch.compile must not wait long for a daemon that hangs.
_PATIENCE_SECONDS = 3.0
PTXAS_VARIABLE = "TRITON_PTXAS_PATH"


@dataclass(frozen=True, slots=True)
class _Replaced:
    """The class that was changed, what it had, what it was given, and the variable that was set."""

    owner: Any
    original: Any
    ours: Any
    ptxas: str | None


_replaced: _Replaced | None = None


def put_in(module: ModuleType) -> None:
    """Replace `AsyncCompile.process_pool` of this module, `torch._inductor.async_compile`."""
    global _replaced
    if _replaced is not None:
        return
    owner: Any = module.AsyncCompile
    original = owner.__dict__["process_pool"]

    @functools.lru_cache(1)
    def process_pool() -> Any:
        """torch's own, with compilepool in the place of its SubprocPool."""
        if module.config.worker_start_method != "subprocess":
            return original.__func__()
        assert module.get_compile_threads() > 1
        owner._ready_future = None
        options = Options(default_socket(os.environ, os.getuid()), patience=_PATIENCE_SECONDS)
        pool = InductorPool(options, original.__func__)
        util.Finalize(None, pool.shutdown, exitpriority=sys.maxsize)
        module._pool_set.add(pool)
        return pool

    _replaced = _Replaced(owner, original, process_pool, os.environ.get(PTXAS_VARIABLE))
    # Workers compile with the ptxas that torch brings, and its version is in the keys of Triton's cache: as long as the
    # program does not name it too, what it compiles itself (choices of max-autotune that it benchmarks) is never found.
    module._set_triton_ptxas_path()
    owner._ready_future = None
    owner.process_pool = staticmethod(process_pool)


def remove() -> None:
    """Put back what was replaced."""
    global _replaced
    if _replaced is None:
        return
    before, _replaced = _replaced, None
    pools = [before.ours()] if before.ours.cache_info().currsize else []
    before.owner.process_pool = before.original
    before.owner._ready_future = None
    if before.ptxas is None:
        os.environ.pop(PTXAS_VARIABLE, None)
    for pool in pools:
        if isinstance(pool, InductorPool):
            sys.modules[before.owner.__module__].__dict__["_pool_set"].discard(pool)
            pool.retire()


def is_in_place() -> bool:
    """Whether torch's attribute is ours."""
    return _replaced is not None
