"""One connection as the engine knows it: who is there, and what waits to be sent."""

import os
import uuid
from collections import deque
from typing import Literal

import anyio
import anyio.abc

from compilepool.daemon.credentials import Credentials, PeerProcess
from compilepool.daemon.disguise import Disguise
from compilepool.daemon.events import Domain
from compilepool.daemon.log import event as log_event
from compilepool.daemon.owner import SHARED, Owner
from compilepool.daemon.quota import Usage
from compilepool.protocol import messages as m
from compilepool.protocol.connection import Connection, End
from compilepool.protocol.errors import CompilePoolError, ProtocolError, Refused, to_wire
from compilepool.protocol.frames import Buffer

# A client reads all the time; 8 MiB are a hundred answers, and 256 MiB a bound for one that does not.
OUTBOX_FULL = 8 << 20
OUTBOX_LIMIT = 256 << 20
CHUNK_BYTES = 256 << 10
GREETING_SECONDS = 10.0
FLUSH_SECONDS = 5.0


class Peer:
    """See the module's docstring; `post` queues a message for it.

    name: in the log, and before the numbers of its requests
    sees: whose jobs, events and counts it is shown; None: everybody's
    disguise: of the jobs' numbers that it is told, if it is a forkserver
    """

    def __init__(self, number: int, who: Credentials, process: PeerProcess, owner: Owner, usage: Usage) -> None:
        self.number = number
        self.name = uuid.uuid4().hex[:8]
        self.who = who
        self.process = process
        self.owner = owner
        self.sees: Owner | None = owner
        self.disguise = Disguise(os.urandom(16))
        # Requests whose results are wanted without files, where the store has them.
        self.lean: set[int] = set()
        # A forkserver that was told to import: it may have workers.
        self.adopted = False
        self.sandbox: list[str] = []
        self.role: Literal["unknown"] | m.Role = "unknown"
        self.domain = Domain(owner, "")
        self.connection = Connection(End.DAEMON)
        self.scope = anyio.CancelScope(deadline=anyio.current_time() + GREETING_SECONDS)
        self.refused = False
        self.usage = usage
        self._inbox = 0
        self._outbox: deque[Buffer] = deque()
        self._waiting = 0
        self._wake = anyio.Event()
        self._sent = anyio.Event()
        self._finished = False

    def __repr__(self) -> str:
        return f"<Peer [{self.role} {self.name} | pid {self.process.pid} | outbox: {self._waiting} bytes]>"

    def greeted(self, hello: m.Hello) -> None:
        """The peer has said who it is."""
        if hello.role != "client" and hello.toolchain is None:
            raise ProtocolError(f"a {hello.role} has a toolchain")
        self.role = hello.role
        # What a backend makes is everybody's.
        domain_owner = SHARED if hello.role == "backend" else self.owner
        self.domain = Domain(domain_owner, hello.toolchain.fingerprint if hello.toolchain else "")
        self.scope.deadline = float("inf")

    def request_name(self, number: int) -> str:
        """A request of this peer, as its client can name it too."""
        return f"{self.name}-{number}"

    def give_process(self) -> PeerProcess:
        """Its process, for whoever watches it after the connection."""
        given, self.process = self.process, PeerProcess(self.process.pid, None)
        return given

    def received(self) -> None:
        """Something has arrived: what is kept of it counts; raises Refused when it is too much."""
        change = self.connection.buffered - self._inbox
        self._inbox += change
        self.usage.hold(change)

    def release(self) -> None:
        """It is gone, and holds nothing any more."""
        self.usage.hold(-self._inbox - self._waiting)
        self._inbox = self._waiting = 0
        self._outbox.clear()
        self._finished = True
        self.process.close()

    def post(self, message: m.AnyMessage, segments: tuple[bytes, ...] = ()) -> None:
        """Queue a message; a peer that lets too much wait is disconnected."""
        if self._finished:
            return
        try:
            buffers = self.connection.send(message, segments)
        except Refused as exc:
            self.refuse(exc)
            return
        self._outbox.extend(buffers)
        self._waiting += (size := sum(map(len, buffers)))
        try:
            self.usage.hold(size)
        except Refused:
            self._give_up()
        if self._waiting > OUTBOX_LIMIT:
            self._give_up()
        self._wake.set()

    def _give_up(self) -> None:
        """It does not read: what waits is dropped."""
        log_event("not-reading", self.owner, peer=self.name, waiting=self._waiting)
        self.usage.hold(-self._waiting)
        self._waiting = 0
        self._outbox.clear()
        self.finish()

    def refuse(self, error: CompilePoolError) -> None:
        """Say why, then disconnect."""
        log_event("refused", self.owner, peer=self.name, pid=self.process.pid, reason=error)
        self.post(m.Refusal(to_wire(error)))
        self.refused = True
        self.finish()

    def finish(self) -> None:
        """Send what is queued, for at most FLUSH_SECONDS, then disconnect."""
        self._finished = True
        self.scope.deadline = anyio.current_time() + FLUSH_SECONDS
        self._wake.set()

    async def has_room(self) -> None:
        """Wait until little waits to be sent."""
        while self._waiting > OUTBOX_FULL and not self._finished:
            self._sent = anyio.Event()
            await self._sent.wait()

    async def send_all(self, stream: anyio.abc.ByteSendStream) -> None:
        """Send what is posted, until `finish`."""
        while True:
            while self._outbox:
                chunk = self._next_chunk()
                await stream.send(chunk)
                self._forget(len(chunk))
                self._sent.set()
            if self._finished:
                return
            self._wake = anyio.Event()
            await self._wake.wait()

    def _forget(self, size: int) -> None:
        size = min(size, self._waiting)
        self._waiting -= size
        self.usage.hold(-size)

    def _next_chunk(self) -> bytes:
        """What is to be sent next, small parts together: each send is a turn of the loop."""
        parts = [self._outbox.popleft()]
        size = len(parts[0])
        while self._outbox and size + len(self._outbox[0]) <= CHUNK_BYTES:
            parts.append(self._outbox.popleft())
            size += len(parts[-1])
        return b"".join(parts)
