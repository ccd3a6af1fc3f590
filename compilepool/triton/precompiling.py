"""Configs compiled before the first call: for this process's device, where a launch finds them, or for any other."""

import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import triton

# Triton imports it at the first call of any kernel. Here that is in another thread, which would keep the program's from
# running: some of these files take 30 ms in one piece where they are not kept as bytecode.
import triton.experimental.gluon
from triton.runtime.jit import MockTensor

from compilepool.future import CompileFuture, together
from compilepool.triton.compiler import Compiler
from compilepool.triton.measuring import Call, drop
from compilepool.triton.specialize import compilation_for
from compilepool.triton.warmups import Warmups

if TYPE_CHECKING:
    from compilepool.triton.autotuner import Autotuner


def for_targets(
    tuner: "Autotuner", compiler: Compiler, targets: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> CompileFuture:
    """Into Triton's cache, target by target; nothing here asks for a device. Raises BadTarget."""
    wanted = [
        compilation_for(tuner.fn, target, args, {**kwargs, **config.all_kwargs()})
        for target in targets
        for config in tuner.pruned(Call(tuner.arg_names, args, dict(kwargs), (1,)))
    ]
    futures = [compiler.submit(one, "background") for one in wanted]
    return together(tuner.__name__, futures, lambda: _those_that_compile(futures))


def for_here(tuner: "Autotuner", compiler: Compiler, call: Call) -> CompileFuture:
    """In the thread that prepares: keys and pickles take a while, and the program goes on meanwhile."""
    mocked = Call(call.arg_names, [MockTensor.wrap_dtype(arg) for arg in call.args], call.kwargs, call.grid)
    configs = tuner.pruned(call)
    driver = triton.runtime.driver.active
    device = driver.get_current_device()

    def ask() -> CompileFuture:
        driver.set_current_device(device)
        warmups = tuner.warm(configs, mocked, "background", hooks_must_work=False)
        return together(tuner.__name__, warmups.futures, functools.partial(_compiled, warmups), warmups.cancel)

    return compiler.later(tuner.__name__, ask)


def _compiled(warmups: Warmups) -> list[Any]:
    return [kernel for _, kernel in warmups.as_compiled(drop) if kernel is not None]


def _those_that_compile(futures: Sequence[Future[Any]]) -> list[Any]:
    kernels: list[Any] = []
    error: Exception | None = None
    for future in futures:
        try:
            kernels.append(future.result())
        except Exception as exc:  # noqa: BLE001 - `drop` raises what is no config's own
            drop(None, exc)
            error = exc
    if error is not None and not kernels:
        raise error
    return kernels
