"""One socket to the daemon, shared by all threads of this process.

Sends are serialised by a lock; one reader thread takes what arrives and hands it to whoever waits for it. When the
connection ends, everybody who still waits is told so, once. A compile may take minutes, so silence alone says nothing:
when somebody has waited for `patience` seconds without any word, the daemon is asked for one, and lost if none comes in
as long again. While nobody waits, the reader sleeps. A link is for one process: a fork must make its own.

A daemon that drains says so: the link takes no new requests then, and closes when the last of the old ones is answered.
"""

import contextlib
import itertools
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Sequence

from compilepool.options import Options
from compilepool.protocol import messages as m
from compilepool.protocol.connection import Connection, End, choose_protocol
from compilepool.protocol.errors import CompilePoolError, PoolUnavailable, from_wire
from compilepool.protocol.frames import Buffer
from compilepool.protocol.rendezvous import UntrustedSocket, check_trust
from compilepool.protocol.toolchain import Toolchain

_RECEIVE_BYTES = 1 << 18
# A daemon reads all the time; one that takes nothing for so long is stopped or gone.
_SEND_SECONDS = 10
# The id of requests that only ask whether the daemon is alive: nobody waits for their answers.
_PING = 0
_TIMEVAL = struct.Struct("ll")
_UCRED = struct.Struct("3i")
# The first process; or one outside of this container.
_SERVICE_MANAGERS = (0, 1)

_ANSWERS = (m.Compiled, m.Prepared, m.Status, m.Events, m.Objects, m.Object, m.Managed, m.Stopping)

# Called with an answer and its segments, or with the error that took its place.
Answered = Callable[[m.AnyMessage | CompilePoolError, Sequence[bytes]], None]


class Link:
    """See the module's docstring; made by `open_link`."""

    def __init__(
        self,
        sock: socket.socket,
        connection: Connection,
        welcome: m.Welcome,
        on_start_forkserver: Callable[["Link"], None],
        patience: float,
    ) -> None:
        self.instance = welcome.instance
        self._name = welcome.connection
        self.pid = os.getpid()
        self._on_start_forkserver = on_start_forkserver
        self._socket = sock
        self._patience = patience
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._poll = select.poll()
        for descriptor in (sock.fileno(), self._wake):
            self._poll.register(descriptor, select.POLLIN)
        self._connection = connection
        self._lock = threading.Lock()
        self._waiting: dict[int, Answered] = {}
        self._ids = itertools.count(1)
        self._lost: PoolUnavailable | None = None
        self._draining = False
        self._reader = threading.Thread(target=self._read, name="compilepool-reader", daemon=True)
        self._reader.start()

    def __repr__(self) -> str:
        state = "lost" if self._lost else "draining" if self._draining else "open"
        return f"<Link [{state} | waiting: {len(self._waiting)} | daemon {self.instance[:8]}]>"

    @property
    def usable(self) -> bool:
        """Whether this process may still ask something on it."""
        return self.open and not self._draining and self.pid == os.getpid()

    @property
    def draining(self) -> bool:
        """Whether its daemon takes nothing new."""
        return self._draining

    @property
    def open(self) -> bool:
        """Whether answers may still come."""
        return self._lost is None

    def request(self, make: Callable[[int], m.AnyMessage], answered: Answered, segments: Sequence[Buffer] = ()) -> int:
        """Send `make(id)`; `answered` is called exactly once. Returns the id.

        Raises PoolUnavailable when lost, Refused when the message is larger than the daemon takes.
        """
        number = next(self._ids)
        buffers = self._connection.send(make(number), segments)
        with self._lock:
            if self._lost:
                raise self._lost
            if self._draining:
                raise PoolUnavailable("the daemon is stopping")
            self._waiting[number] = answered
            if len(self._waiting) == 1:
                # The reader may sleep without a limit: now somebody waits.
                os.eventfd_write(self._wake, 1)
        self._send(buffers)
        return number

    def cancel(self, number: int) -> None:
        """Forget a request, and let the daemon forget it."""
        with self._lock:
            known = self._waiting.pop(number, None)
        if known:
            self.tell(m.Cancel(number))

    def tell(self, message: m.AnyMessage) -> None:
        """Send what has no answer; a lost connection is somebody else's news."""
        with contextlib.suppress(PoolUnavailable):
            self._send(self._connection.send(message))

    def close(self) -> None:
        """Disconnect; whoever still waits is told."""
        if self.pid != os.getpid():
            # The socket is the parent's too: to shut it down would cut the parent off.
            self._socket.close()
            return
        self._lose(PoolUnavailable("the connection was closed by this program"))
        if threading.current_thread() is not self._reader:
            self._reader.join()

    def _send(self, buffers: Sequence[Buffer]) -> None:
        try:
            with self._lock:
                for buffer in buffers:
                    self._socket.sendall(buffer)
        except (BrokenPipeError, ConnectionResetError):
            # The daemon has closed: the reader finds out, and reads what it said before.
            return
        except OSError as exc:
            self._lose(PoolUnavailable(f"lost the daemon: {exc}"))

    def _read(self) -> None:
        reason: Exception | str = "it closed the connection"
        try:
            while chunk := self._receive():
                for received in self._connection.receive(chunk):
                    self._take(received.message, received.segments)
        except (OSError, CompilePoolError) as exc:
            reason = exc
        finally:
            # Whatever ended it (a thread that can't be started, too): nobody may wait for ever.
            self._lose(PoolUnavailable(f"lost the daemon: {reason}"))
            self._socket.close()
            with self._lock:
                os.close(self._wake)

    def _receive(self) -> bytes:
        """What arrives next; TimeoutError if somebody waits and the daemon does not even answer a ping."""
        pinged = False
        while True:
            ready = self._poll.poll(1000 * self._patience if self._waiting else None)
            if any(descriptor == self._wake for descriptor, _ in ready):
                os.eventfd_read(self._wake)
            elif ready:
                return self._socket.recv(_RECEIVE_BYTES)
            elif pinged:
                raise TimeoutError(f"it has not answered for {2 * self._patience:.0f} s")
            else:
                pinged = True
                self.tell(m.GetStatus(_PING))

    def _take(self, message: m.AnyMessage, segments: tuple[bytes, ...]) -> None:
        match message:
            case m.Failed(number, failure):
                error = from_wire(failure)
                error.request = f"{self._name}-{number}"
                self._answer(number, error, ())
            case m.StartForkserver():
                self._on_start_forkserver(self)
            case m.Draining():
                self._draining = True
                self._close_if_done()
            case m.Refusal(failure):
                raise from_wire(failure)
            case _ if isinstance(message, _ANSWERS):
                self._answer(message.id, message, segments)

    def _answer(self, number: int, answer: m.AnyMessage | CompilePoolError, segments: tuple[bytes, ...]) -> None:
        with self._lock:
            answered = self._waiting.pop(number, None)
        if answered:
            answered(answer, segments)
        self._close_if_done()

    def _close_if_done(self) -> None:
        with self._lock:
            done = self._draining and not self._waiting
        if done:
            self._lose(PoolUnavailable("the daemon is stopping"))

    def _lose(self, error: PoolUnavailable) -> None:
        with self._lock:
            first, self._lost = self._lost is None, self._lost or error
            waiting, self._waiting = list(self._waiting.values()), {}
        if first:
            with contextlib.suppress(OSError):
                # Ends the reader, which closes the socket.
                self._socket.shutdown(socket.SHUT_RDWR)
        for answered in waiting:
            answered(error, ())


def open_link(options: Options, toolchain: Toolchain | None, on_start_forkserver: Callable[[Link], None]) -> Link:
    """Connect and greet within `connect_timeout`; raises PoolUnavailable with the reason.

    on_start_forkserver: called, in the reader's thread, when the daemon asks for a forkserver
    """
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(options.connect_timeout)
    connection = Connection(End.CLIENT)
    try:
        check_trust(options.socket, os.getuid())
        sock.connect(str(options.socket))
        if _peer_of(sock) in _SERVICE_MANAGERS:
            # It listens for a daemon that it may just be starting, for this very connection.
            sock.settimeout(options.start_timeout)
        welcome = _greet(sock, connection, toolchain)
    except TimeoutError as exc:
        silent = _peer_of(sock)
        sock.close()
        raise PoolUnavailable(
            f"the daemon at {options.socket} (pid {silent}) does not answer: timed out; `kill -9 {silent}` ends it"
        ) from exc
    except (OSError, CompilePoolError, UntrustedSocket) as exc:
        sock.close()
        raise PoolUnavailable(f"no daemon answers at {options.socket}: {exc}") from exc
    # Sends are bounded, receives are not: an answer takes as long as a compile takes.
    sock.settimeout(None)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(_SEND_SECONDS, 0))
    return Link(sock, connection, welcome, on_start_forkserver, options.patience)


def _peer_of(sock: socket.socket) -> int:
    """Who listens there, as far as this container can name it."""
    pid, _, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return int(pid)


def _greet(sock: socket.socket, connection: Connection, toolchain: Toolchain | None) -> m.Welcome:
    while chunk := sock.recv(_RECEIVE_BYTES):
        for received in connection.receive(chunk):
            if isinstance(received.message, m.Refusal):
                raise from_wire(received.message.failure)
            if isinstance(received.message, m.Welcome):
                protocol = choose_protocol(received.message)
                if protocol is None:
                    spoken = f"{received.message.protocol_min} to {received.message.protocol_max}"
                    raise PoolUnavailable(f"it speaks protocols {spoken}; upgrade the older of the two")
                for buffer in connection.send(m.Hello(protocol, "client", toolchain)):
                    sock.sendall(buffer)
                return received.message
    raise PoolUnavailable("it closed the connection without a greeting")
