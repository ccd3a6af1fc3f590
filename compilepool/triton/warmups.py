"""Configs on their way: Triton's own warm-ups, in a mode that hands them to the pool and waits for none of them.

`triton.AsyncCompileMode` waits at its end for all that was submitted. Here each config is taken when it is compiled:
while one is being measured, the pool compiles the next.
"""

import inspect
import os
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from triton.runtime import _async_compile
from triton.runtime.autotuner import Config

from compilepool.future import CompileFuture
from compilepool.protocol.messages import Priority
from compilepool.triton.compiler import Compiler
from compilepool.triton.executor import Executor


class Warmups:
    """Configs that were asked for, by what Triton gave for each."""

    def __init__(self, compiler: Compiler, priority: Priority = "foreground") -> None:
        self._mode = _async_compile.AsyncCompileMode(Executor(priority=priority, compiler=compiler))
        self._made: list[tuple[Config, Any]] = []
        _open.add(self)

    def __repr__(self) -> str:
        return f"<Warmups [configs: {len(self._made)}, compiled: {sum(f.done() for f in self.futures)}]>"

    @property
    def futures(self) -> list["Future[Any]"]:
        """One for each compile that was asked for."""
        return list(self._mode.raw_futures)

    @property
    def done(self) -> bool:
        """Whether all are there."""
        return all(future.done() for future in self.futures)

    def cancel(self) -> None:
        """Nobody wants them any more; what other processes wait for goes on.

        Triton keeps what it has asked for where launches look for kernels: there it is taken away.
        """
        for future_kernel in self._mode.future_kernels.values():
            if future_kernel.future.cancel():
                _take_away(future_kernel)

    def abandon(self) -> None:
        """Forget what is not there: in a fork, its answer will never come."""
        self._made = [(config, kernel) for config, kernel in self._made if _is_done(kernel)]
        for future_kernel in self._mode.future_kernels.values():
            if not future_kernel.future.done():
                _take_away(future_kernel)
        self._mode.raw_futures = [future for future in self._mode.raw_futures if future.done()]

    def add(self, config: Config, warm: Callable[[], Any]) -> None:
        """Ask for a config; `warm` is Triton's own warm-up of it."""
        token = _async_compile.active_mode.set(self._mode)
        try:
            self._made.append((config, warm()))
        finally:
            _async_compile.active_mode.reset(token)

    def first_ready(self) -> Config:
        """The first config that is there and can be used; raises what the last one raised, if none can."""
        error: Exception | None = None
        for config, kernel in self._as_done():
            try:
                _result(kernel)
            except Exception as exc:  # noqa: BLE001 - another config may do
                error = exc
            else:
                return config
        raise error or RuntimeError("no config was asked for")

    def as_compiled(self, drop: Callable[[Config, Exception], None]) -> Iterator[tuple[Config, Any]]:
        """Each config with its kernel, as they come; None for one that `drop` was told of and let pass."""
        for config, kernel in self._as_done():
            try:
                compiled = _result(kernel)
            except Exception as exc:  # noqa: BLE001 - what drops a config is the caller's to say
                drop(config, exc)
                compiled = None
            yield config, compiled

    def _as_done(self) -> Iterator[tuple[Config, Any]]:
        waiting = list(self._made)
        while waiting:
            ready = [one for one in waiting if _is_done(one[1])]
            if not ready:
                _wait_for_one([one[1].future for one in waiting])
                continue
            waiting = [one for one in waiting if not any(one is done for done in ready)]
            yield from ready


# For forks.
_open: "weakref.WeakSet[Warmups]" = weakref.WeakSet()


def _abandon_all() -> None:
    for warmups in list(_open):
        warmups.abandon()


os.register_at_fork(after_in_child=_abandon_all)


def _take_away(future_kernel: Any) -> None:
    kept = inspect.getclosurevars(future_kernel.finalize_compile).nonlocals
    kept["kernel_cache"].pop(kept["key"], None)


def wait_for_any(several: Sequence[Warmups]) -> None:
    """Until one of these has all that it asked for."""
    futures = {future: warmups for warmups in several for future in warmups.futures if not future.done()}
    while not any(warmups.done for warmups in several):
        for future in _wait_for_one(futures):
            del futures[future]


def _wait_for_one(futures: Collection[Future[Any]]) -> set[Future[Any]]:
    """Until one is done, or more; they are urgent from here on, whatever they were asked for as."""
    for future in futures:
        if isinstance(future, CompileFuture):
            future.hurry()
    return wait(futures, return_when=FIRST_COMPLETED).done


def _is_done(kernel: Any) -> bool:
    return not isinstance(kernel, _async_compile.FutureKernel) or bool(kernel.future.done())


def _result(kernel: Any) -> Any:
    return kernel.result() if isinstance(kernel, _async_compile.FutureKernel) else kernel
