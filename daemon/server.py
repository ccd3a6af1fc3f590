"""The daemon's connections: accepts, knows each peer by its credentials, greets, and hands messages to the desk.

A peer that breaks the protocol gets a `Refusal` that says what was wrong, and its connection ends; nobody else notices.
Connections take turns, message by message. One that does not read its answers is not read from while `OUTBOX_FULL`
bytes wait for it, and disconnected when what was asked before has made them `OUTBOX_LIMIT`.
"""

import contextlib
import itertools
import socket

import anyio
import anyio.abc
import anyio.lowlevel

from compilepool.daemon.credentials import credentials_of, process_of
from compilepool.daemon.desk import Desk
from compilepool.daemon.engine import Engine
from compilepool.daemon.listener import Listener
from compilepool.daemon.log import event as log_event
from compilepool.daemon.owner import Owner
from compilepool.daemon.peer import Peer
from compilepool.daemon.quota import CONNECTIONS, Quotas, Usage
from compilepool.protocol import messages as m
from compilepool.protocol.errors import CompilePoolError, Refused

CAPABILITIES = ["compile-source"]
# Who breaks the protocol is told after a moment: one that tries again and again costs nobody much.
REFUSAL_SECONDS = 0.1


class Server:
    """Serves the listening sockets."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._desk = Desk(engine)
        self._quotas = Quotas()
        self._numbers = itertools.count(1)
        self._accepting = anyio.CancelScope()

    async def serve(self, listeners: list[Listener]) -> None:
        """Accept until `stop`, leave the sockets to a successor, and wait for the connections to end."""
        async with anyio.create_task_group() as connections:
            with self._accepting:
                async with anyio.create_task_group() as accepting:
                    for listener in listeners:
                        accepting.start_soon(self._accept_all, listener, connections)
            for listener in listeners:
                listener.close()

    def stop(self) -> None:
        """Accept no more."""
        self._accepting.cancel()

    async def _accept_all(self, listener: Listener, connections: anyio.abc.TaskGroup) -> None:
        while True:
            connected = await _accept(listener.socket)
            connections.start_soon(self._connection, connected, listener.namespace)

    async def _connection(self, connected: socket.socket, namespace: str) -> None:
        who = credentials_of(connected)
        owner = Owner(namespace, who.uid)
        sees = None if self._engine.access.is_admin(who, namespace) else owner
        usage = self._quotas.connected(owner)
        peer = Peer(next(self._numbers), who, process_of(connected, who.pid), owner, sees, usage)
        engine = self._engine
        peer.post(
            m.Welcome(m.PROTOCOL_MIN, m.PROTOCOL_MAX, CAPABILITIES, engine.instance, engine.config.slots, peer.name)
        )
        try:
            async with await anyio.abc.UNIXSocketStream.from_socket(connected) as stream:
                with peer.scope:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(self._read, stream, peer, usage)
                        await _write(stream, peer)
                        if not peer.refused:
                            tasks.cancel_scope.cancel()
        finally:
            self._engine.left(peer, "it disconnected")
            peer.release()
            self._quotas.disconnected(owner)

    async def _read(self, stream: anyio.abc.ByteReceiveStream, peer: Peer, usage: Usage) -> None:
        """Take messages until the peer closes; one that breaks the protocol is refused."""
        try:
            self._admit(peer, usage)
            async for chunk in stream:
                for received in peer.connection.receive(chunk):
                    self._take(peer, received.message, received.segments)
                    await anyio.lowlevel.checkpoint()
                    await peer.has_room()
                peer.received()
            peer.connection.receive_eof()
        except CompilePoolError as exc:
            await anyio.sleep(REFUSAL_SECONDS)
            peer.refuse(exc)
            await _take_the_rest(stream)
        except anyio.BrokenResourceError:
            peer.finish()
        else:
            peer.finish()

    def _admit(self, peer: Peer, usage: Usage) -> None:
        if refusal := self._engine.access.refusal(peer.who, peer.owner.namespace):
            raise Refused(refusal)
        if usage.connections > CONNECTIONS:
            raise Refused(f"you have {CONNECTIONS} connections, the most that are taken: close some first")

    def _take(self, peer: Peer, message: m.AnyMessage, segments: tuple[bytes, ...]) -> None:
        if isinstance(message, m.Hello):
            if refusal := self._engine.access.refusal_of_role(peer.who, peer.owner.namespace, message.role):
                raise Refused(refusal)
            peer.greeted(message)
            self._engine.joined(peer)
        else:
            self._desk.received(peer, message, segments)


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
