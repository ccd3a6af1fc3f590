"""The daemon's connections: accepts, knows each peer by SO_PEERCRED, greets, and hands messages to the engine.

A peer that breaks the protocol gets a `Refusal` that says what was wrong, and its connection ends; nobody else notices.
Connections take turns, message by message. One that does not read its answers is not read from while `OUTBOX_FULL`
bytes wait for it, and disconnected when what was asked before has made them `OUTBOX_LIMIT`.
"""

import contextlib
import itertools
import os
import socket
import struct
from collections import deque
from typing import Literal

import anyio
import anyio.abc
import anyio.lowlevel

from compilepool.daemon.engine import Engine
from compilepool.daemon.events import Domain
from compilepool.daemon.listener import Listener
from compilepool.daemon.log import event as log_event
from compilepool.protocol import messages as m
from compilepool.protocol.connection import Connection, End
from compilepool.protocol.errors import CompilePoolError, ProtocolError, Refused, to_wire
from compilepool.protocol.frames import Buffer

CAPABILITIES = ["compile-source"]
# A client reads all the time; 8 MiB are a hundred answers, and 256 MiB a bound for one that does not.
OUTBOX_FULL = 8 << 20
OUTBOX_LIMIT = 256 << 20
CHUNK_BYTES = 256 << 10
# Who breaks the protocol is told after a moment: one that tries again and again costs nobody much.
REFUSAL_SECONDS = 0.1
GREETING_SECONDS = 10.0
FLUSH_SECONDS = 5.0
_UCRED = struct.Struct("3i")


class Peer:
    """One connection and what is known of its other end; `post` queues a message for it."""

    def __init__(self, number: int, pid: int, uid: int) -> None:
        self.number = number
        self.pid = pid
        self.uid = uid
        # Requests whose results are wanted without files, where the store has them.
        self.lean: set[int] = set()
        # A forkserver that was told to import: it may have workers.
        self.adopted = False
        self.role: Literal["unknown", "client", "forkserver"] = "unknown"
        self.domain = Domain(uid, "")
        self.connection = Connection(End.DAEMON)
        self.scope = anyio.CancelScope(deadline=anyio.current_time() + GREETING_SECONDS)
        self._outbox: deque[Buffer] = deque()
        self._waiting = 0
        self._wake = anyio.Event()
        self._sent = anyio.Event()
        self._finished = False
        self.refused = False

    def __repr__(self) -> str:
        return f"<Peer [{self.role} {self.number} | pid {self.pid} | outbox: {self._waiting} bytes]>"

    def greeted(self, hello: m.Hello) -> None:
        """The peer has said who it is."""
        if hello.role == "forkserver" and hello.toolchain is None:
            raise ProtocolError("a forkserver has a toolchain")
        self.role = hello.role
        self.domain = Domain(self.uid, hello.toolchain.fingerprint if hello.toolchain else "")
        self.scope.deadline = float("inf")

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
        self._waiting += sum(map(len, buffers))
        if self._waiting > OUTBOX_LIMIT:
            log_event("not-reading", peer=self.number, waiting=self._waiting)
            self._outbox.clear()
            self.finish()
        self._wake.set()

    def refuse(self, error: CompilePoolError) -> None:
        """Say why, then disconnect."""
        log_event("refused", peer=self.number, pid=self.pid, uid=self.uid, reason=error)
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
                self._waiting -= len(chunk)
                self._sent.set()
            if self._finished:
                return
            self._wake = anyio.Event()
            await self._wake.wait()

    def _next_chunk(self) -> bytes:
        """What is to be sent next, small parts together: each send is a turn of the loop."""
        parts = [self._outbox.popleft()]
        size = len(parts[0])
        while self._outbox and size + len(self._outbox[0]) <= CHUNK_BYTES:
            parts.append(self._outbox.popleft())
            size += len(parts[-1])
        return b"".join(parts)


class Server:
    """Serves one listening socket."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._numbers = itertools.count(1)
        self._accepting = anyio.CancelScope()

    async def serve(self, listener: Listener) -> None:
        """Accept until `stop`, leave the socket's path to a successor, and wait for the connections to end."""
        async with anyio.create_task_group() as connections:
            with self._accepting:
                while True:
                    connected = await _accept(listener.socket)
                    connections.start_soon(self._connection, connected)
            listener.close()

    def stop(self) -> None:
        """Accept no more."""
        self._accepting.cancel()

    async def _connection(self, connected: socket.socket) -> None:
        pid, uid, _ = _UCRED.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        peer = Peer(next(self._numbers), pid, uid)
        peer.post(
            m.Welcome(m.PROTOCOL_MIN, m.PROTOCOL_MAX, CAPABILITIES, self._engine.instance, self._engine.config.slots)
        )
        async with await anyio.abc.UNIXSocketStream.from_socket(connected) as stream:
            with peer.scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._read, stream, peer)
                    await _write(stream, peer)
                    if not peer.refused:
                        tasks.cancel_scope.cancel()
        self._engine.left(peer, "it disconnected")

    async def _read(self, stream: anyio.abc.ByteReceiveStream, peer: Peer) -> None:
        """Take messages until the peer closes; one that breaks the protocol is refused."""
        try:
            if peer.uid != os.getuid():
                raise Refused(f"this daemon serves uid {os.getuid()} only, and you are uid {peer.uid}: start your own")
            async for chunk in stream:
                for received in peer.connection.receive(chunk):
                    self._take(peer, received.message, received.segments)
                    await anyio.lowlevel.checkpoint()
                    await peer.has_room()
            peer.connection.receive_eof()
        except CompilePoolError as exc:
            await anyio.sleep(REFUSAL_SECONDS)
            peer.refuse(exc)
            await _take_the_rest(stream)
        except anyio.BrokenResourceError:
            peer.finish()
        else:
            peer.finish()

    def _take(self, peer: Peer, message: m.AnyMessage, segments: tuple[bytes, ...]) -> None:
        if isinstance(message, m.Hello):
            peer.greeted(message)
            self._engine.joined(peer)
        else:
            self._engine.received(peer, message, segments)


async def _accept(listener: socket.socket) -> socket.socket:
    while True:
        await anyio.wait_readable(listener)
        try:
            connected, _ = listener.accept()
        except BlockingIOError:
            continue
        except OSError as exc:
            # Out of descriptors: the waiting peer stays in the backlog and is tried again.
            log_event("accept-failed", error=exc)
            await anyio.sleep(0.1)
            continue
        connected.setblocking(False)
        return connected


async def _take_the_rest(stream: anyio.abc.ByteReceiveStream) -> None:
    """Read on until the peer has gone: a socket that is closed with bytes unread drops what was sent last."""
    with contextlib.suppress(anyio.BrokenResourceError):
        async for _ in stream:
            continue


async def _write(stream: anyio.abc.ByteStream, peer: Peer) -> None:
    try:
        await peer.send_all(stream)
        await stream.send_eof()
    except anyio.BrokenResourceError:
        peer.finish()
