"""A `concurrent.futures.Executor` whose workers are the pool's.

    with triton.AsyncCompileMode(compilepool.triton.Executor()):
        kernel.warmup(torch.float16, ..., grid=(1,), BLOCK=128)

What Triton submits in this mode is a closure over its compile; what that would compile is sent instead, and Triton puts
the finished kernel into its own cache of compiled kernels when the mode ends: the first launch finds it. Any other
callable is sent as a pickle, and called in a worker of this user; without a pool, by whoever wants its result.
"""

import functools
import inspect
import os
import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor as Base, Future, wait as wait_for
from typing import Any, TypeVar

import cloudpickle

from compilepool.client import Pool, say_once
from compilepool.future import CompileFuture
from compilepool.protocol import messages as m
from compilepool.protocol.contents import DamagedContents, verify
from compilepool.protocol.environment import compile_environment
from compilepool.protocol.errors import CompilePoolError, PoolUnavailable
from compilepool.triton.compilation import Compilation
from compilepool.triton.compiler import Compiler, default_compiler

T = TypeVar("T")
_CLOSED_OVER = frozenset({"src", "target", "options", "env_vars"})


class Executor(Base):
    """See the module's docstring.

    pool: as `compilepool.connect` gives it; default: that of this host's daemon, which is started if none runs
    priority: 'background' for what nobody waits for yet
    compiler: to ask by, in the place of a pool
    """

    def __init__(
        self, pool: Pool | None = None, *, priority: m.Priority = "foreground", compiler: Compiler | None = None
    ) -> None:
        self._compiler = compiler or (Compiler(pool) if pool else default_compiler())
        self._priority: m.Priority = priority
        self._lock = threading.Lock()
        self._open: set[Future[Any]] = set()
        self._closed = False

    def __repr__(self) -> str:
        return f"<Executor [open: {len(self._open)} | {self._compiler.pool!r}]>"

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        """Have `fn(*args, **kwargs)` done in a worker; RuntimeError after `shutdown`."""
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        wanted = None if args or kwargs else compilation_of(fn)
        future = self._compiler.submit(wanted, self._priority) if wanted else self._call(fn, args, kwargs)
        with self._lock:
            self._open.add(future)
        future.add_done_callback(self._over)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take nothing more; with `wait`, return when all is done."""
        self._closed = True
        with self._lock:
            left = set(self._open)
        for future in left if cancel_futures else ():
            future.cancel()
        if wait:
            wait_for(left)

    def _over(self, future: "Future[Any]") -> None:
        with self._lock:
            self._open.discard(future)

    def _call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> CompileFuture:
        job = functools.partial(fn, *args, **kwargs)
        call = m.Call(getattr(fn, "__qualname__", repr(fn)), compile_environment(os.environ))
        future = CompileFuture(call.name)

        def answered(answer: m.AnyMessage | CompilePoolError, segments: Sequence[bytes]) -> None:
            future.arrived(functools.partial(_result, job, answer, segments))

        make = functools.partial(m.Execute, call=call, priority=self._priority)
        self._compiler.pool.request(make, (cloudpickle.dumps(job),), answered, future)
        return future


def compilation_of(fn: Callable[..., Any]) -> Compilation | None:
    """What a callable compiles that Triton submits in `AsyncCompileMode`; None: it is another callable."""
    if getattr(fn, "__module__", None) != "triton.runtime.jit" or not inspect.isfunction(fn):
        return None
    closed_over = inspect.getclosurevars(fn).nonlocals
    if not closed_over.keys() >= _CLOSED_OVER:
        return None
    told = closed_over["options"].__dict__
    return Compilation(closed_over["src"], closed_over["target"], dict(told), closed_over["env_vars"])


def _result(job: Callable[[], Any], answer: m.AnyMessage | CompilePoolError, segments: Sequence[bytes]) -> Any:
    if isinstance(answer, PoolUnavailable):
        say_once(answer)
        return job()
    if isinstance(answer, CompilePoolError):
        raise answer
    if not isinstance(answer, m.Compiled):
        raise TypeError(f"{type(answer).__name__} answers no call")
    try:
        verify(answer.contents, segments)
    except DamagedContents as exc:
        raise PoolUnavailable(f"the answer is damaged: {exc}") from exc
    return pickle.loads(segments[0])  # noqa: S301 - made by a worker of this user
