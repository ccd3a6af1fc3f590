"""The futures of a pool: one that is waited for is urgent from then on, whatever it was asked for as.

That of a kernel is done when the answer is here, and finished by whoever asks for the result.

What comes from the daemon is bytes. To unpack, unpickle and load them takes milliseconds of this process's own time and
belongs to the thread that wants the kernel, as in torch's own `LambdaFuture`: the first `result()` does it, once.
"""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

from compilepool.protocol.errors import PoolUnavailable

T = TypeVar("T")


class PoolFuture(Future[T]):
    """A `concurrent.futures.Future` that calls `on_blocked`, once, when a thread begins to wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.on_blocked: Callable[[], None] | None = None
        self.hurried = False
        self.add_done_callback(_tell_who_waits)

    def result(self, timeout: float | None = None) -> T:
        """The result; raises a CompilePoolError, or TimeoutError after `timeout` seconds."""
        self.hurry()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error that `result` would raise, or None."""
        self.hurry()
        return super().exception(timeout)

    def hurry(self) -> None:
        """Somebody waits for it now; once, as far as the pool is told."""
        self.hurried = True
        on_blocked, self.on_blocked = self.on_blocked, None
        if on_blocked is not None and not self.done():
            on_blocked()


def together(
    name: str, futures: "Sequence[Future[Any]]", finish: Callable[[], Any], cancel: Callable[[], None] | None = None
) -> "CompileFuture":
    """A future that is done when all of these are; its result is made by `finish`, and to cancel it cancels them."""
    whole = CompileFuture(name)
    left = len(futures)
    counting = threading.Lock()

    def one_more(_done: "Future[Any]") -> None:
        nonlocal left
        with counting:
            left -= 1
            last = left == 0
        if last:
            whole.arrived(finish)

    def hurry() -> None:
        for future in futures:
            if isinstance(future, PoolFuture):
                future.hurry()

    whole.on_blocked = hurry

    def cancel_all() -> None:
        for future in futures:
            future.cancel()

    whole.add_done_callback(lambda done: (cancel or cancel_all)() if done.cancelled() else None)
    for future in futures:
        future.add_done_callback(one_more)
    if not futures:
        whole.arrived(finish)
    return whole


def _tell_who_waits(future: "Future[Any]") -> None:
    """`concurrent.futures.wait` goes on waiting for a cancelled future until its executor has taken note of that."""
    if future.cancelled():
        future.set_running_or_notify_cancel()


class CompileFuture(PoolFuture[Any]):
    """A `concurrent.futures.Future` of a CachingAutotuner."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self._pid = os.getpid()
        self._finishing = threading.Lock()
        self._finish: Callable[[], Any] | None = None
        self._finished: tuple[Any, BaseException | None] | None = None

    def __repr__(self) -> str:
        return f"<CompileFuture [{self.name} | {self._state.lower()}]>"

    def result(self, timeout: float | None = None) -> Any:
        """The autotuner, ready to launch where there is a GPU for it; raises a CompilePoolError.

        timeout: seconds to wait for the answer (not for what is then done with it); TimeoutError when they pass
        """
        value, error = self._outcome(timeout)
        if error is not None:
            raise error
        return value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error that `result` would raise, or None."""
        return self._outcome(timeout)[1]

    def arrived(self, finish: Callable[[], Any]) -> None:
        """The answer is here; `finish` makes the result of it, or raises. Too late for a cancelled future."""
        self._finish = finish
        try:
            self.set_result(None)
        except InvalidStateError:
            return

    def follow(self, inner: "CompileFuture") -> None:
        """Become what another one becomes."""
        inner.add_done_callback(lambda _: self.arrived(inner.result))
        self.add_done_callback(lambda _: inner.cancel() if self.cancelled() else None)
        self.on_blocked = inner.hurry
        if self.hurried:
            inner.hurry()

    def _outcome(self, timeout: float | None) -> tuple[Any, BaseException | None]:
        if self._pid != os.getpid() and not self.done():
            raise PoolUnavailable("its answer goes to the process that asked; ask again in this one", self.name)
        super().result(timeout)
        with self._finishing:
            if self._finished is None:
                self._finished = self._run()
            return self._finished

    def _run(self) -> tuple[Any, BaseException | None]:
        if self._finish is None:
            raise RuntimeError("this future is done without an answer")
        try:
            value = self._finish()
        except Exception as exc:  # noqa: BLE001 - a future keeps whatever was raised, for every caller
            return None, exc
        finally:
            self._finish = None
        return value, None
