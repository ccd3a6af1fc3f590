"""What torch takes for its compile workers: `submit(function, *arguments)` gives a future.

    torch submits                           the daemon gets   the result
    `AsyncCompile._get_ready`               prepare           done when the forkserver is ready; until then torch
                                                              compiles in the program, as beside its own pool
    `_worker_compile_triton`, cuda or hip   compile           (autotuner as torch's worker returns it, microseconds)
    anything else                           execute           what the function returns, in a worker of this user

`submit` never waits: a task that finds no daemon, or was lost with one, is with the pool's connector (`channel`). When
the pool could not do one, the program goes over to torch's own pool, for good, and says so once.
"""

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any

from torch._inductor.async_compile import AsyncCompile
from torch._inductor.compile_worker.subproc_pool import SubprocException

from compilepool.client import Pool
from compilepool.inductor.tasks import Task, task_for
from compilepool.options import Options
from compilepool.protocol import messages as m
from compilepool.protocol.errors import CompilePoolError, PoolUnavailable

log = logging.getLogger("compilepool")


class InductorPool:
    """See the module's docstring; `torchs` gives torch's own pool, which is started when it is first needed."""

    def __init__(self, options: Options, torchs: Callable[[], Any]) -> None:
        self._pool = Pool(options, on_retry=_not_ready)
        self._torchs = torchs
        self._lock = threading.Lock()
        self._gone_over = False
        self._closed = False

    def __repr__(self) -> str:
        return f"<InductorPool [{'gone over to torch' if self._gone_over else repr(self._pool)}]>"

    def submit(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> "Future[Any]":
        """Have `function(*arguments)` done by the pool, or by torch's own."""
        if self._closed:
            raise RuntimeError("Attempting to use a closed pool")
        task = None if self._gone_over else task_for(function, arguments, named)
        if task is None:
            future: Future[Any] = self._own().submit(function, *arguments, **named)
            return future
        answered = functools.partial(self._answered, task)
        if task.kernel is not None:
            self._pool.request_kernel(task.kernel, answered, task.future)
        else:
            self._pool.request(task.make, task.segments, answered, task.future)
        return task.future

    def wakeup(self) -> None:
        """Nothing to wake: the forkserver is shared, and was asked for when torch was imported."""

    def quiesce(self) -> None:
        """Nothing to put to sleep: no worker waits for this program."""

    def shutdown(self) -> None:
        """Disconnect; what is in flight is cancelled, as by torch's own pool (which torch shuts down itself)."""
        self._closed = True
        self._pool.close()

    def retire(self) -> None:
        """Disconnect; what is in flight is done by torch's own pool."""
        self._gone_over = True
        self._pool.close()

    # ---- answers

    def _answered(self, task: Task, answer: m.AnyMessage | CompilePoolError, segments: Sequence[bytes]) -> None:
        if isinstance(answer, PoolUnavailable):
            self._not_done(task, answer)
        elif isinstance(answer, CompilePoolError):
            task.future.arrived(functools.partial(_raise_as_torch_does, answer))
        else:
            task.future.arrived(functools.partial(self._finish, task, answer, segments))

    def _finish(self, task: Task, answer: Any, segments: Sequence[bytes]) -> Any:
        try:
            return task.finish(answer, segments)
        except PoolUnavailable as exc:
            log.warning("asking torch's own compile pool for %s: %s", task.name, exc)
            return self._own().submit(task.job).result()

    def _not_done(self, task: Task, error: PoolUnavailable) -> None:
        if not self._closed and not self._gone_over:
            _not_ready()
            self._go_over(error)
        self._hand_over(task)

    # ---- torch's own pool

    def _go_over(self, error: PoolUnavailable) -> None:
        with self._lock:
            before, self._gone_over = self._gone_over, True
        if not before:
            log.warning("torch.compile goes over to torch's own compile pool: %s", error)

    def _hand_over(self, task: Task) -> None:
        if self._closed:
            _cancel(task.future)
            return
        try:
            own: Future[Any] = self._own().submit(task.job)
        except Exception as exc:  # noqa: BLE001 - whatever torch's own pool raises belongs to who waits
            task.future.arrived(functools.partial(_raise, exc))
        else:
            own.add_done_callback(lambda done: task.future.arrived(done.result))

    def _own(self) -> Any:
        with self._lock:
            return self._torchs()


def _not_ready() -> None:
    """From here on torch compiles in the program, until a pool says that it is ready."""
    AsyncCompile._ready_future = None


def _raise_as_torch_does(error: CompilePoolError) -> None:
    """Raise what torch expects of its compile workers: it adds the kernel's name."""
    raise SubprocException(str(error)) from error


def _raise(error: BaseException) -> None:
    raise error


def _cancel(future: "Future[Any]") -> None:
    if not future.cancel():
        try:
            future.set_exception(RuntimeError("the compile pool was closed"))
        except InvalidStateError:
            return
