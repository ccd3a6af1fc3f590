"""The pool as a program sees it: hand over kernels, get futures.

    with compilepool.connect() as pool:
        autotuner = pool.compile_source(name, source).result()

A `Pool` is for all threads of a process and survives its daemon: each request goes to the daemon that is there at the
time. What the pool can't do (no daemon, lost daemon, no forkserver) is compiled in this process when its result is
asked for, and the reason is said once; what is wrong with a kernel is raised.
"""

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast, get_args

import msgspec

from compilepool.autostart import get_link
from compilepool.future import CompileFuture
from compilepool.kernel import Wanted, wanted
from compilepool.link import Answered, Link
from compilepool.once import SayOnce
from compilepool.options import Options
from compilepool.protocol import messages as m
from compilepool.protocol.detect import NoToolchain, detect
from compilepool.protocol.errors import CompilePoolError, PoolUnavailable
from compilepool.protocol.rendezvous import default_socket
from compilepool.protocol.toolchain import Toolchain
from compilepool.spawn import CommandFailed, run_command

# Starting one takes an interpreter's start; its imports come after.
_START_FORKSERVER_SECONDS = 25.0


def connect(socket: str | os.PathLike[str] | None = None, *, autostart: bool = True, fallback: bool = True) -> "Pool":
    """The pool of this host, through the user's daemon, which is started if none runs.

    socket: path of the daemon's socket; default: COMPILEPOOL_SOCKET, or the user's own
    autostart: start a daemon when none runs
    fallback: compile in this process what the pool can't; otherwise raise PoolUnavailable, here and from results
    """
    path = Path(socket).absolute() if socket is not None else default_socket(os.environ, os.getuid())
    pool = Pool(Options(path, autostart=autostart, fallback=fallback))
    try:
        pool.link()
    except PoolUnavailable as exc:
        if not fallback:
            raise
        say_once(exc)
    return pool


class Pool:
    """See the module's docstring; made by `connect`."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._link: Link | None = None

    def __repr__(self) -> str:
        return f"<Pool [{self._options.socket} | {self._link!r}]>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect; what was not answered is no longer wanted."""
        with self._lock:
            link, self._link = self._link, None
        if link is not None:
            link.close()

    def compile_source(self, name: str, source: str, *, priority: m.Priority = "foreground") -> CompileFuture:
        """Compile an Inductor kernel: the strings that torch passes to `AsyncCompile.triton`.

        name: the kernel's name in the source
        source: the module's text
        priority: 'background' for what nobody waits for yet
        The future's result is a CachingAutotuner: on a machine with the kernel's GPU its launchers are built, elsewhere
        its `compile_results` are complete.
        """
        _check_arguments(name, source, priority)
        kernel = wanted(name, source)
        future = CompileFuture(name)

        def answered(answer: m.AnyMessage | CompilePoolError, segments: Sequence[bytes]) -> None:
            if isinstance(answer, PoolUnavailable):
                future.arrived(functools.partial(self._without_pool, kernel, answer))
            elif isinstance(answer, CompilePoolError):
                future.arrived(functools.partial(_raise, answer))
            elif isinstance(answer, m.Compiled):
                future.arrived(functools.partial(self._load, kernel, answer, segments))

        self._submit(kernel, priority, answered, future)
        return future

    def warm(self, name: str, source: str, *, priority: m.Priority = "background") -> "Future[m.AnyMessage]":
        """Have a kernel compiled and kept, without loading it here; the result is the daemon's `Compiled`.

        Imports no torch into this process (its Python must have it), and has no fallback.
        """
        _check_arguments(name, source, priority)
        future: Future[m.AnyMessage] = Future()
        self._submit(wanted(name, source), priority, _into(future), future)
        return future

    def status(self) -> m.StatusReport:
        """What the daemon says of itself; raises PoolUnavailable when none runs."""
        return cast(m.Status, self._ask(m.GetStatus)).report

    def stop(self, *, now: bool = False) -> None:
        """Let the daemon finish what runs and exit; with `now`, give it up. Raises PoolUnavailable when none runs."""
        self._ask(functools.partial(m.Stop, now=now))

    def link(self) -> Link:
        """The link to the daemon, made anew if it was lost or this process is a fork; raises PoolUnavailable."""
        with self._lock:
            if self._link is None or not self._link.usable:
                self._link = get_link(self._options, _toolchain(), self._start_forkserver)
            return self._link

    def open_link(self) -> Link | None:
        """The link to the daemon if there is one: never waits."""
        link = self._link
        return link if link is not None and link.usable else None

    def _submit(self, kernel: Wanted, priority: m.Priority, answered: Answered, future: "Future[Any]") -> None:
        make = functools.partial(kernel.message, priority=priority)
        try:
            _require_toolchain()
            link = self.link()
            number = link.request(make, answered, (kernel.canonical,))
        except PoolUnavailable as exc:
            answered(exc, ())
        else:
            future.add_done_callback(lambda done: link.cancel(number) if done.cancelled() else None)

    def _ask(self, make: Callable[[int], m.AnyMessage]) -> m.AnyMessage:
        future: Future[m.AnyMessage] = Future()
        self.link().request(make, _into(future))
        try:
            return future.result(timeout=self._options.start_timeout)
        except TimeoutError as exc:
            raise PoolUnavailable(f"the daemon at {self._options.socket} does not answer") from exc

    def _without_pool(self, kernel: Wanted, error: PoolUnavailable) -> Any:
        if not self._options.fallback:
            raise error
        try:
            from compilepool.local import compile_locally
        except ImportError:
            raise error from None
        say_once(error)
        return compile_locally(kernel.name, kernel.source)

    def _load(self, kernel: Wanted, answer: m.Compiled, segments: Sequence[bytes]) -> Any:
        from compilepool.reload import reload_autotuner

        try:
            return reload_autotuner(kernel, answer.contents, segments)
        except PoolUnavailable as exc:
            return self._without_pool(kernel, exc)

    def _start_forkserver(self) -> None:
        """The daemon asks for one; the reader's thread must not wait for it."""
        threading.Thread(target=self._run_forkserver, name="compilepool-start-forkserver", daemon=True).start()

    def _run_forkserver(self) -> None:
        link = self._link
        expected = msgspec.json.encode(detect()).decode()
        arguments = ("forkserver", "--detach", "--socket", str(self._options.socket), "--expect", expected)
        try:
            run_command(*arguments, timeout=_START_FORKSERVER_SECONDS)
        except CommandFailed as exc:
            if link is not None:
                link.tell(m.StartFailed(str(exc)))


say_once = SayOnce("compiling in this process, without the compile pool: %s")


def _toolchain() -> Toolchain | None:
    """This process's toolchain; None where torch or triton is missing, which is enough to ask and administer."""
    try:
        return detect()
    except NoToolchain:
        return None


def _check_arguments(name: str, source: str, priority: m.Priority) -> None:
    """Raise here what the daemon would refuse: it ends the connection, and with it everybody else's requests."""
    for what, value in (("name", name), ("source", source)):
        if not isinstance(value, str):
            raise TypeError(f"a kernel's {what} is a str, not {type(value).__name__}")
    source.encode()
    if priority not in get_args(m.Priority):
        raise ValueError(f"priority is one of {', '.join(get_args(m.Priority))}; not {priority!r}")


def _require_toolchain() -> None:
    try:
        detect()
    except NoToolchain as exc:
        raise PoolUnavailable(str(exc)) from exc


def _into(future: "Future[m.AnyMessage]") -> Answered:
    """Answers resolve this future; one that was cancelled meanwhile stays so."""

    def answered(answer: m.AnyMessage | CompilePoolError, _segments: Sequence[bytes]) -> None:
        with contextlib.suppress(InvalidStateError):
            if isinstance(answer, CompilePoolError):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    return answered


def _raise(error: CompilePoolError) -> None:
    raise error
