"""The forkserver: imports torch and triton once, compiles once, then forks a worker for every job it is given.

    attach (socket, Hello) --> import, warm up, prove one thread --> Ready --> loop: Spawn -> fork, child gone -> answer

It attaches before it imports, so that the daemon knows within milliseconds that one is on its way and notices at once
when it dies. It has one thread and no event loop: `fork` copies only the calling thread, and a lock that another one
held would stay locked in every worker. It waits on two descriptors, the daemon's socket and the wake-up pipe of
SIGCHLD, and wakes for nothing else until it has been idle for `idle_exit` seconds.

When the daemon goes, its workers have nobody to answer to: they are killed and the forkserver exits.
"""

import contextlib
import gc
import os
import selectors
import shutil
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from compilepool.daemon.worker.no_driver import occupy
from compilepool.daemon.worker.scratch import scratch_root
from compilepool.protocol import messages as m
from compilepool.protocol.connection import Connection, End, choose_protocol
from compilepool.protocol.environment import decides_compiles
from compilepool.protocol.errors import CompileError, CompilePoolError, Failure, PoolUnavailable, from_wire
from compilepool.protocol.frames import Buffer
from compilepool.protocol.toolchain import Toolchain

if TYPE_CHECKING:
    from compilepool.daemon.worker.child import Child, Outcome

# Libraries read these when they are loaded; torch's CUDA build has 17 threads without them. No worker may see a device.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
}
CONNECT_SECONDS = 10.0
IDLE_EXIT_SECONDS = 900.0
_RECEIVE_BYTES = 1 << 18


class Retired(Exception):
    """The forkserver is to exit; the message says why."""


def attach(path: Path, toolchain: Toolchain) -> "DaemonLink":
    """Connect to the daemon and say who we are; raises PoolUnavailable with the reason."""
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(CONNECT_SECONDS)
    try:
        sock.connect(str(path))
        link = DaemonLink(sock)
        link.greet(toolchain)
    except (OSError, CompilePoolError) as exc:
        sock.close()
        raise PoolUnavailable(f"can't attach to the daemon at {path}: {exc}") from exc
    return link


class DaemonLink:
    """The socket to the daemon, without blocking: what can't be sent at once waits here."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._connection = Connection(End.FORKSERVER)
        self._unsent: deque[memoryview] = deque()

    @property
    def sending(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._unsent)

    def greet(self, toolchain: Toolchain) -> None:
        """Exchange the greeting, blocking."""
        while True:
            for received in self._connection.receive(self._receive()):
                if isinstance(received.message, m.Refusal):
                    raise from_wire(received.message.failure)
                if isinstance(received.message, m.Welcome):
                    protocol = choose_protocol(received.message)
                    if protocol is None:
                        raise PoolUnavailable("the daemon speaks no protocol that this forkserver speaks")
                    self._sendall(m.Hello(protocol, "forkserver", toolchain))
                    self.socket.setblocking(False)
                    return

    def read(self) -> list[tuple[m.AnyMessage, tuple[bytes, ...]]]:
        """Messages that have arrived; raises Retired when the daemon is gone or broke the protocol."""
        try:
            chunk = self._receive()
            return [(received.message, received.segments) for received in self._connection.receive(chunk)]
        except BlockingIOError:
            return []
        except (OSError, CompilePoolError) as exc:
            raise Retired(f"lost the daemon: {exc}") from exc

    def post(self, message: m.AnyMessage, segments: Iterable[Buffer] = ()) -> None:
        """Send, as far as the socket takes it; the rest when it is writable."""
        self._unsent.extend(memoryview(buffer) for buffer in self._connection.send(message, tuple(segments)))
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as the socket takes it."""
        try:
            while self._unsent:
                sent = self.socket.send(self._unsent[0])
                rest = self._unsent.popleft()[sent:]
                if rest:
                    self._unsent.appendleft(rest)
        except BlockingIOError:
            return
        except OSError as exc:
            raise Retired(f"lost the daemon: {exc}") from exc

    def _sendall(self, message: m.AnyMessage) -> None:
        for buffer in self._connection.send(message):
            self.socket.sendall(buffer)

    def _receive(self) -> bytes:
        chunk = self.socket.recv(_RECEIVE_BYTES)
        if not chunk:
            raise ConnectionResetError("it closed the connection")
        return chunk


def prepare_environment() -> None:
    """Make this process's environment that of a forkserver; before the first import of torch."""
    for name in filter(decides_compiles, list(os.environ)):
        del os.environ[name]
    os.environ.update(ENVIRONMENT)


def serve(link: DaemonLink, idle_exit: float = IDLE_EXIT_SECONDS) -> str:
    """Warm up and serve until retired; returns why it ended."""
    with scratch_root() as root:
        return Forkserver(link, root, idle_exit).run()


class Forkserver:
    """See the module's docstring; `root` is the scratch directory below which every worker has its own."""

    def __init__(self, link: DaemonLink, root: Path, idle_exit: float) -> None:
        self._link = link
        self._root = root
        self._idle_exit = idle_exit
        self._children: dict[int, Child] = {}
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = socket.socketpair()

    def __repr__(self) -> str:
        return f"<Forkserver [pid {os.getpid()} | workers: {len(self._children)}]>"

    def run(self) -> str:
        """Serve until there is a reason not to; returns the reason."""
        try:
            self._warm_up()
            self._watch()
            while True:
                self._turn()
        except Retired as exc:
            return str(exc)
        finally:
            self._kill_all()

    def _warm_up(self) -> None:
        started = time.monotonic()
        try:
            occupy()
            from compilepool.daemon.worker.warmup import warm_up

            warm_up(self._root / "warm-up")
        except Exception as exc:
            self._link.post(m.Unfit(f"it can't compile: {type(exc).__name__}: {exc}"))
            raise Retired(f"unfit: {exc}") from exc
        shutil.rmtree(self._root / "warm-up", ignore_errors=True)
        self._check_single_thread()
        gc.collect()
        gc.freeze()
        self._link.post(m.Ready(time.monotonic() - started))

    def _watch(self) -> None:
        for end in (self._wake_reader, self._wake_writer):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wake_writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, _retire_on_signal)
        self._selector.register(self._link.socket, selectors.EVENT_READ)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)

    def _turn(self) -> None:
        interest = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._link.sending else 0)
        self._selector.modify(self._link.socket, interest)
        ready = self._selector.select(None if self._children else self._idle_exit)
        if not ready and not self._children:
            raise Retired(f"idle for {self._idle_exit:.0f} s")
        for key, events in ready:
            if key.fileobj is self._wake_reader:
                self._drain_wake_ups()
                self._reap()
            elif events & selectors.EVENT_READ:
                for message, segments in self._link.read():
                    self._take(message, segments)
        self._link.flush()

    def _take(self, message: m.AnyMessage, segments: tuple[bytes, ...]) -> None:
        match message:
            case m.Spawn():
                self._spawn(message, segments[0])
            case m.Kill(job):
                for child in self._children.values():
                    if child.job == job:
                        child.kill()
            case m.Retire(reason):
                raise Retired(reason)
            case m.Refusal(failure):
                raise Retired(f"refused: {failure.message}")
            case _:
                raise Retired(f"the daemon sent {type(message).__name__}")

    def _spawn(self, spawn: m.Spawn, source: bytes) -> None:
        from compilepool.daemon.worker.child import fork_child

        self._check_single_thread()
        try:
            child = fork_child(spawn.job, spawn.recipe, source, spawn.cache_dir, self._root, _compile)
        except OSError as exc:
            failure = Failure("unavailable", f"no worker could be forked: {exc}", spawn.recipe.name)
            self._link.post(m.JobFailed(spawn.job, failure, m.Cost(0.0, 0.0, 0)))
        else:
            self._children[child.pid] = child

    def _reap(self) -> None:
        from compilepool.daemon.worker.child import has_ended, reap

        for child in list(self._children.values()):
            if has_ended(child):
                del self._children[child.pid]
                self._answer(reap(child))

    def _answer(self, outcome: "Outcome") -> None:
        if outcome.contents is not None:
            self._link.post(m.JobDone(outcome.job, outcome.contents), outcome.segments)
        elif outcome.failure is not None:
            self._link.post(m.JobFailed(outcome.job, outcome.failure, outcome.cost))

    def _drain_wake_ups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake_reader.recv(4096):
                pass

    def _check_single_thread(self) -> None:
        tasks = os.listdir("/proc/self/task")
        if len(tasks) > 1:
            names = ", ".join(sorted(Path(f"/proc/self/task/{task}/comm").read_text().strip() for task in tasks))
            known = ", ".join(thread.name for thread in threading.enumerate())
            reason = f"it has {len(tasks)} threads ({names}; Python's: {known}), and a fork would copy their locks"
            self._link.post(m.Unfit(reason))
            raise Retired(f"unfit: {reason}")

    def _kill_all(self) -> None:
        from compilepool.daemon.worker.child import reap

        for child in self._children.values():
            child.kill()
            reap(child)


def _compile(recipe: m.Recipe, source: bytes, root: Path, cache_dir: str) -> tuple[m.Contents, list[bytes]]:
    from compilepool.daemon.worker.compile import compile_kernel, scratch

    try:
        text = source.decode()
    except UnicodeDecodeError as exc:
        raise CompileError(f"its source is not UTF-8: {exc}", recipe.name) from exc
    place = scratch(root, cache_dir)
    place.enter()
    return compile_kernel(recipe, text, place)


def _retire_on_signal(number: int, _frame: object) -> None:
    raise Retired(f"told to by {signal.Signals(number).name}")
