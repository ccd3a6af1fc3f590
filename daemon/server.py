"""The daemon's connections: accepts, knows each peer by its credentials, greets, and hands messages to the desk.

A peer that breaks the protocol gets a `Refusal` that says what was wrong, and its connection ends; nobody else notices.
Connections take turns, message by message. One that does not read its answers is not read from while `OUTBOX_FULL`
bytes wait for it, and disconnected when what was asked before has made them `OUTBOX_LIMIT`.
"""

import contextlib
import itertools
import logging
import socket
from collections.abc import Awaitable

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
from compilepool.daemon.quota import CONNECTIONS, Quotas
from compilepool.protocol import messages as m
from compilepool.protocol.connection import Received
from compilepool.protocol.errors import CompilePoolError, Refused

_log = logging.getLogger(__name__)
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
        usage = self._quotas.connected(owner)
        peer = Peer(next(self._numbers), who, process_of(connected, who.pid), owner, usage)
        engine = self._engine
        peer.post(
            m.Welcome(m.PROTOCOL_MIN, m.PROTOCOL_MAX, CAPABILITIES, engine.instance, engine.config.slots, peer.name)
        )
        try:
            async with await anyio.abc.UNIXSocketStream.from_socket(connected) as stream:
                with peer.scope:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(self._read, stream, peer)
                        await _write(stream, peer)
                        if not peer.refused:
                            tasks.cancel_scope.cancel()
        finally:
            self._engine.left(peer, "it disconnected")
            peer.release()
            self._quotas.disconnected(owner)

    async def _read(self, stream: anyio.abc.ByteReceiveStream, peer: Peer) -> None:
        """Take messages until the peer closes; one that breaks the protocol is refused."""
        try:
            self._admit(peer)
            if peer.usage.connections > CONNECTIONS:
                raise Refused(f"you have {CONNECTIONS} connections, the most that are taken: close some first")
            async for chunk in stream:
                await self._take_all(peer, chunk)
            peer.connection.receive_eof()
        except CompilePoolError as exc:
            await anyio.sleep(REFUSAL_SECONDS)
            peer.refuse(exc)
            await _take_the_rest(stream)
        except anyio.BrokenResourceError:
            peer.finish()
        except Exception as exc:  # noqa: BLE001 - see below
            # Whatever it is, it is this peer's doing, and ends with it: the others' daemon goes on.
            log_event("bug", peer.owner, peer=peer.name, error=repr(exc))
            _log.exception("a message was not understood")
            peer.refuse(Refused(f"the daemon could not handle what you sent: {type(exc).__name__}"))
        else:
            peer.finish()

    async def _take_all(self, peer: Peer, chunk: bytes) -> None:
        """What this completes, message by message; in between it is others' turn."""
        arrived = peer.connection.receive(chunk)
        while True:
            async with peer.usage.turn:
                received = next(arrived, None)
                peer.received()
                if received is None:
                    return
                self._admit(peer)
                unfinished = self._take(peer, received)
            if unfinished is not None:
                await unfinished
            await anyio.lowlevel.checkpoint()
            await peer.has_room()

    def _admit(self, peer: Peer) -> None:
        """Raise Refused unless the settings of this moment let it in; and see what it may see."""
        access, namespace = self._engine.access, peer.owner.namespace
        refusal = access.refusal(peer.who, namespace)
        if not refusal and peer.role != "unknown":
            refusal = access.refusal_of_role(peer.who, namespace, peer.role)
        if refusal:
            raise Refused(refusal)
        peer.sees = None if access.is_admin(peer.who, namespace) else peer.owner

    def _take(self, peer: Peer, received: Received) -> Awaitable[None] | None:
        message = received.message
        if isinstance(message, m.Hello):
            if refusal := self._engine.access.refusal_of_role(peer.who, peer.owner.namespace, message.role):
                raise Refused(refusal)
            peer.greeted(message)
            self._engine.joined(peer)
            return None
        return self._desk.received(peer, message, received.segments, received.size)


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
