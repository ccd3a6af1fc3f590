"""The pool as a program sees it: hand over kernels, get futures.

    with compilepool.connect() as pool:
        autotuner = pool.compile_source(name, source).result()

A `Pool` is for all threads of a process, and for its forks, and survives its daemon: each request goes to the daemon
that is there at the time, and to the next one if that is lost. What the pool can't do (no daemon, no forkserver) is
compiled in this process when its result is asked for, and the reason is said once; what is wrong with a kernel is
raised.
"""

import contextlib
import functools
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, cast, get_args

import msgspec

from compilepool import request_log
from compilepool.autostart import get_link
from compilepool.channel import Channel, Request
from compilepool.emit import gather
from compilepool.future import CompileFuture, PoolFuture
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

T = TypeVar("T")

# Keys in one message.
_KEYS = 500

# The daemon gives it 30 s to attach and 300 s to import; whoever starts it is told how that went.
_START_FORKSERVER_SECONDS = 330.0


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

    def __init__(self, options: Options, on_retry: Callable[[], None] = lambda: None) -> None:
        self._options = options
        self._channel = Channel(self._connect, on_retry)
        # Cache directories that lacked a kernel which another process has had compiled.
        self._without_files: set[str] = set()

    def __repr__(self) -> str:
        return f"<Pool [{self._options.socket} | {self._channel!r}]>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect for good; what was not answered is no longer wanted."""
        self._channel.close()

    def compile_source(
        self, name: str, source: str, *, priority: m.Priority = "foreground", timeout: float | None = None
    ) -> CompileFuture:
        """Compile an Inductor kernel: the strings that torch passes to `AsyncCompile.triton`.

        name: the kernel's name in the source
        source: the module's text
        priority: 'background' for what nobody waits for yet; to wait for its result makes it urgent
        timeout: seconds that the compile may take once it has begun; None: as many as the daemon allows
        The future's result is a CachingAutotuner: on a machine with the kernel's GPU its launchers are built, elsewhere
        its `compile_results` are complete.
        """
        _check_arguments(name, source, priority, timeout)
        kernel = wanted(name, source)
        future = CompileFuture(name)

        def answered(answer: m.AnyMessage | CompilePoolError, segments: Sequence[bytes]) -> None:
            if isinstance(answer, PoolUnavailable):
                future.arrived(functools.partial(self._without_pool, kernel, answer))
            elif isinstance(answer, CompilePoolError):
                future.arrived(functools.partial(_raise, answer))
            elif isinstance(answer, m.Compiled):
                future.arrived(functools.partial(self._load, kernel, answer, segments))

        if error := no_toolchain():
            answered(error, ())
        else:
            self.request_kernel(kernel, answered, future, priority=priority, timeout=timeout)
        return future

    def warm(
        self, name: str, source: str, *, priority: m.Priority = "background", timeout: float | None = None
    ) -> PoolFuture[m.AnyMessage]:
        """Have a kernel compiled and kept, without loading it here; the result is the daemon's `Compiled`.

        Imports no torch into this process (its Python must have it), and has no fallback.
        """
        _check_arguments(name, source, priority, timeout)
        kernel = wanted(name, source)
        request_log.note(kernel)
        future: PoolFuture[m.AnyMessage] = PoolFuture()
        make = functools.partial(kernel.message, priority=priority, timeout=timeout, without_files=True)
        if error := no_toolchain():
            future.set_exception(error)
        else:
            self.request(make, (kernel.canonical,), _into(future), future)
        return future

    def status(self) -> m.StatusReport:
        """What the daemon says of itself; raises PoolUnavailable when none runs."""
        return cast(m.Status, self._ask(m.GetStatus)).report

    def stop(self, *, now: bool = False) -> None:
        """Let the daemon finish what runs and exit; with `now`, give it up. Raises PoolUnavailable when none runs."""
        self._ask(functools.partial(m.Stop, now=now))

    def events(self, after: int = 0) -> list[m.Event]:
        """The daemon's events, oldest first: those after this number that it still has."""
        events: list[m.Event] = []
        while page := cast(m.Events, self._ask(functools.partial(m.GetEvents, after=after))).events:
            events += page
            after = page[-1].number
        return events

    def objects(self, owner: str = "") -> Iterator[m.ObjectInfo]:
        """What the store has of this user, in the order of the keys.

        owner: of another ('1000', 'team-a/1000', 'shared'), for administrators; raises Refused
        """
        after = ""
        while page := cast(m.Objects, self._ask(functools.partial(m.ListObjects, after=after, owner=owner))).objects:
            yield from page
            after = page[-1].key

    def read_object(self, key: str) -> tuple[m.Object, Sequence[bytes]]:
        """One of them, whole; raises Refused when it is not there."""
        answer, segments = self._ask_whole(functools.partial(m.ReadObject, key=key))
        return cast(m.Object, answer), segments

    def find_object(self, identity: m.Identity) -> tuple[m.Object, Sequence[bytes]]:
        """The one that is about this, whole; raises Refused when it is not there."""
        answer, segments = self._ask_whole(functools.partial(m.FindObject, identity=identity))
        return cast(m.Object, answer), segments

    def add_object(self, identity: m.Identity, contents: m.Contents, segments: Sequence[bytes]) -> None:
        """Have a result kept that the same toolchain made elsewhere; raises Refused when it can't be."""
        self._ask(functools.partial(m.AddObject, identity=identity, contents=contents), segments)

    def manage_objects(
        self, action: Literal["pin", "unpin", "remove", "verify"], keys: Sequence[str], owner: str = ""
    ) -> tuple[int, int]:
        """Pin, unpin, remove or verify (read) objects; how many that were and of how many bytes.

        Of a verify: how many were damaged, and are gone. `owner`: as of `objects`.
        """
        objects = size = 0
        for start in range(0, len(keys), _KEYS):
            part = list(keys[start : start + _KEYS])
            order = functools.partial(m.ManageObjects, action=action, keys=part, owner=owner)
            done = cast(m.Managed, self._ask(order))
            objects, size = objects + done.objects, size + done.bytes
        return objects, size

    def link(self) -> Link:
        """The link to the daemon, made anew if it was lost; raises PoolUnavailable."""
        return self._channel.link()

    def request(
        self, make: Callable[[int], m.AnyMessage], segments: Sequence[bytes], answered: Answered, future: PoolFuture[T]
    ) -> None:
        """Have the message `make(id)` answered: `answered` is called once, and a cancelled future cancels it."""
        request = Request(make, segments, answered)
        future.on_blocked = request.promote
        self._channel.submit(request)
        future.add_done_callback(lambda done: request.drop() if done.cancelled() else None)

    def request_kernel(
        self,
        kernel: Wanted,
        answered: Answered,
        future: PoolFuture[Any],
        *,
        priority: m.Priority = "foreground",
        timeout: float | None = None,
    ) -> None:
        """Have a kernel compiled; its answer has all its segments, from the daemon or from this Triton cache."""
        cache = Path(kernel.triton_dir)

        def gathered(answer: m.AnyMessage | CompilePoolError, segments: Sequence[bytes]) -> None:
            if not isinstance(answer, m.Compiled) or not answer.without_files:
                answered(answer, segments)
            elif (found := gather(answer.contents, segments[0], cache)) is not None:
                answered(answer, found)
            else:
                # One that lacks this lacks the rest, most likely.
                self._without_files.add(kernel.triton_dir)
                self.request(make, (kernel.canonical,), answered, future)

        request_log.note(kernel)
        make = functools.partial(kernel.message, priority=priority, timeout=timeout)
        if kernel.triton_dir not in self._without_files and kernel.triton_dir and cache.is_dir():
            lean = functools.partial(make, without_files=True)
            self.request(lean, (kernel.canonical,), gathered, future)
        else:
            self.request(make, (kernel.canonical,), answered, future)

    def _connect(self) -> Link:
        return get_link(self._options, _toolchain(with_torch=self._options.with_torch), self._start_forkserver)

    def _ask(self, make: Callable[[int], m.AnyMessage], segments: Sequence[bytes] = ()) -> m.AnyMessage:
        return self._ask_whole(make, segments)[0]

    def _ask_whole(
        self, make: Callable[[int], m.AnyMessage], segments: Sequence[bytes] = ()
    ) -> tuple[m.AnyMessage, Sequence[bytes]]:
        """Ask what is answered at once, and wait for it."""
        future: Future[tuple[m.AnyMessage, Sequence[bytes]]] = Future()

        def answered(answer: m.AnyMessage | CompilePoolError, segments: Sequence[bytes]) -> None:
            if isinstance(answer, CompilePoolError):
                future.set_exception(answer)
            else:
                future.set_result((answer, segments))

        self.link().request(make, answered, segments)
        # It is answered, or lost: a link gives up a daemon that has said nothing for twice its patience.
        return future.result()

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

    def _start_forkserver(self, link: Link) -> None:
        """The daemon asks for one; the reader's thread must not wait for it."""
        name = "compilepool-start-forkserver"
        threading.Thread(target=self._run_forkserver, args=(link,), name=name, daemon=True).start()

    def _run_forkserver(self, link: Link) -> None:
        expected = msgspec.json.encode(detect(with_torch=self._options.with_torch)).decode()
        arguments = ("forkserver", "--detach", "--socket", str(self._options.socket), "--expect", expected)
        try:
            run_command(*arguments, timeout=_START_FORKSERVER_SECONDS)
        except CommandFailed as exc:
            link.tell(m.StartFailed(str(exc)))


say_once = SayOnce("compiling in this process, without the compile pool: %s")


def _toolchain(*, with_torch: bool) -> Toolchain | None:
    """This process's toolchain; None where torch or triton is missing, which is enough to ask and administer."""
    try:
        return detect(with_torch=with_torch)
    except NoToolchain:
        return None


def _check_arguments(name: str, source: str, priority: m.Priority, timeout: float | None) -> None:
    """Raise here what the daemon would refuse: it ends the connection, and with it everybody else's requests."""
    for what, value in (("name", name), ("source", source)):
        if not isinstance(value, str):
            raise TypeError(f"a kernel's {what} is a str, not {type(value).__name__}")
    source.encode()
    if priority not in get_args(m.Priority):
        raise ValueError(f"priority is one of {', '.join(get_args(m.Priority))}; not {priority!r}")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
        raise TypeError(f"timeout is a number of seconds, not {timeout!r}")
    if timeout is not None and not (timeout > 0 and math.isfinite(timeout)):
        raise ValueError(f"timeout is a number of seconds, more than 0; not {timeout!r}")


def no_toolchain(*, with_torch: bool = True) -> PoolUnavailable | None:
    """Why nothing can be compiled for this process, if nothing can."""
    try:
        detect(with_torch=with_torch)
    except NoToolchain as exc:
        return PoolUnavailable(str(exc))
    return None


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
