"""A forkserver's socket to its daemon: the greeting, then messages both ways without blocking."""

import socket
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from compilepool.protocol import messages as m
from compilepool.protocol.connection import Connection, End, choose_protocol
from compilepool.protocol.errors import CompilePoolError, PoolUnavailable, from_wire
from compilepool.protocol.frames import Buffer
from compilepool.protocol.toolchain import Toolchain

CONNECT_SECONDS = 10.0
_RECEIVE_BYTES = 1 << 18


class Retired(Exception):
    """The forkserver is to exit; the message says why."""


def attach(path: Path, toolchain: Toolchain, role: m.Role = "forkserver") -> "DaemonLink":
    """Connect to the daemon and be adopted.

    Raises PoolUnavailable with the reason, or Retired where another serves this toolchain already.
    """
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(CONNECT_SECONDS)
    try:
        sock.connect(str(path))
        link = DaemonLink(sock, str(path), role)
        link.greet(toolchain)
    except (OSError, CompilePoolError) as exc:
        sock.close()
        raise PoolUnavailable(f"can't attach to the daemon at {path}: {exc}") from exc
    return link


class DaemonLink:
    """The socket to the daemon, without blocking: what can't be sent at once waits here."""

    def __init__(self, sock: socket.socket, path: str, role: m.Role) -> None:
        self.socket = sock
        self._role = role
        self.path = path
        self.slots = 1
        self.replaces: list[int] = []
        self.requires: list[str] = []
        self._connection = Connection(End.FORKSERVER)
        self._unsent: deque[memoryview] = deque()

    @property
    def sending(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._unsent)

    def greet(self, toolchain: Toolchain) -> None:
        """Exchange the greeting and wait to be adopted, blocking; raises Retired if another is there already."""
        while True:
            for received in self._connection.receive(self._receive()):
                match received.message:
                    case m.Welcome():
                        self._welcomed(received.message, toolchain)
                    case m.Adopt(replaces, requires):
                        self.replaces, self.requires = replaces, requires
                        self.socket.setblocking(False)
                        return
                    case m.Retire(reason):
                        raise Retired(reason)
                    case m.Refusal(failure):
                        raise from_wire(failure)

    def _welcomed(self, welcome: m.Welcome, toolchain: Toolchain) -> None:
        protocol = choose_protocol(welcome)
        if protocol is None:
            raise PoolUnavailable("the daemon speaks no protocol that this forkserver speaks")
        self.slots = welcome.slots
        for buffer in self._connection.send(m.Hello(protocol, self._role, toolchain)):
            self.socket.sendall(buffer)

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

    def _receive(self) -> bytes:
        chunk = self.socket.recv(_RECEIVE_BYTES)
        if not chunk:
            raise ConnectionResetError("it closed the connection")
        return chunk
