"""Peers that break the protocol, against a live daemon, beside a client that does not."""

import socket
import struct
from contextlib import suppress

import msgspec
import pytest

from compilepool.kernel import wanted
from compilepool.protocol import messages as m
from compilepool.protocol.connection import Connection, End
from compilepool.protocol.detect import detect
from compilepool.protocol.errors import CompilePoolError, PoolUnavailable, Refused
from compilepool.protocol.frames import encode_frame
from compilepool.protocol.toolchain import Toolchain
from tests.conftest import Daemon, eventually_equal
from tests.sources import pointwise

pytestmark = pytest.mark.faults
ALIEN = Toolchain("Alien 1.0", "/nowhere", "linux-x86_64", "0", "0", "", "0")


class RawPeer:
    """A socket to the daemon that sends whatever a test wants."""

    def __init__(self, daemon: Daemon) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(30)
        self.socket.connect(str(daemon.socket))
        self.connection = Connection(End.CLIENT)
        assert isinstance(self.receive(), m.Welcome)

    def send(self, message: m.AnyMessage, *segments: bytes) -> None:
        self.socket.sendall(b"".join(self.connection.send(message, segments)))

    def receive(self) -> m.AnyMessage | None:
        """The next message; None when the daemon closes."""
        while chunk := self.socket.recv(1):
            for received in self.connection.receive(chunk):
                return received.message
        return None

    def refusal(self) -> str:
        """What the daemon says before it closes."""
        message = self.receive()
        assert isinstance(message, m.Refusal), message
        assert self.receive() is None
        self.socket.close()
        return message.failure.message


def raw_header(header: object) -> bytes:
    return b"".join(encode_frame(msgspec.msgpack.encode(header)))


@pytest.mark.parametrize(
    ("bytes_sent", "says"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "not a compilepool peer"),
        (struct.pack(">4sII", b"CPL1", 2**32 - 1, 0), "announces 4294967295 header bytes"),
        (struct.pack(">4sIIQ", b"CPL1", 1, 1, 2**63), "announces 1 segments"),
        (raw_header({"type": "compile", "id": 1}), "may send now"),
        (raw_header({"type": "hello", "protocol": 99, "role": "client"}), "protocol 99 is not spoken"),
        (raw_header({"type": "hello", "protocol": 1, "role": "forkserver"}), "a forkserver has a toolchain"),
        (raw_header("hello"), "may send now"),
    ],
)
def test_a_stranger_is_told_why_it_is_refused(shared_daemon: Daemon, bytes_sent: bytes, says: str) -> None:
    peer = RawPeer(shared_daemon)
    peer.socket.sendall(bytes_sent)
    assert says in peer.refusal()
    assert shared_daemon.status().running == 0


def test_a_segment_too_large_is_refused_before_it_is_sent(shared_daemon: Daemon) -> None:
    peer = RawPeer(shared_daemon)
    peer.send(m.Hello(1, "client", ALIEN))
    peer.socket.sendall(struct.pack(">4sIIQ", b"CPL1", 1, 1, 2**63))
    assert "at most" in peer.refusal()


def test_an_id_is_used_once(shared_daemon: Daemon) -> None:
    peer = RawPeer(shared_daemon)
    peer.send(m.Hello(1, "client", ALIEN))
    for _ in range(2):
        peer.send(m.Compile(5, m.Recipe("k", {}, {})), b"x = 1")
    messages = [peer.receive(), peer.receive()]
    refusals = [message for message in messages if isinstance(message, m.Refusal)]
    assert len(refusals) == 1
    assert "ids are used once" in refusals[0].failure.message
    peer.socket.close()


def test_a_client_without_a_toolchain_may_only_ask(shared_daemon: Daemon) -> None:
    peer = RawPeer(shared_daemon)
    peer.send(m.Hello(1, "client"))
    peer.send(m.GetStatus(1))
    assert isinstance(peer.receive(), m.Status)
    peer.send(m.Compile(2, m.Recipe("k", {}, {})), b"x = 1")
    assert "without a toolchain" in peer.refusal()


def test_a_forkserver_that_answers_what_it_was_not_given_is_refused(shared_daemon: Daemon) -> None:
    peer = RawPeer(shared_daemon)
    peer.connection = Connection(End.FORKSERVER)
    list(peer.connection.receive(b"".join(Connection(End.DAEMON).send(m.Welcome(1, 1, [], "")))))
    peer.send(m.Hello(1, "forkserver", ALIEN))
    assert isinstance(peer.receive(), m.Adopt)
    peer.send(m.JobDone(1, m.Contents([], [], ["00"], m.Cost(0.0, 0.0, 0))), b"")
    assert "was not given to this forkserver" in peer.refusal()


def test_a_forkserver_that_damages_a_result_is_refused_and_its_job_goes_back(daemon: Daemon) -> None:
    client = RawPeer(daemon)
    client.send(m.Hello(1, "client", ALIEN))
    client.send(m.Compile(1, m.Recipe("k", {}, {})), b"x = 1")
    assert isinstance(client.receive(), m.StartForkserver)
    peer = RawPeer(daemon)
    peer.connection = Connection(End.FORKSERVER)
    list(peer.connection.receive(b"".join(Connection(End.DAEMON).send(m.Welcome(1, 1, [], "")))))
    peer.send(m.Hello(1, "forkserver", ALIEN))
    assert isinstance(peer.receive(), m.Adopt)
    peer.send(m.Ready(0.1))
    spawn = peer.receive()
    assert isinstance(spawn, m.Spawn)
    peer.send(m.JobDone(spawn.job, m.Contents([], [], ["00"], m.Cost(0.0, 0.0, 0))), b"not what the checksum says")
    assert "damaged" in peer.refusal()
    assert isinstance(client.receive(), m.StartForkserver)
    client.send(m.StartFailed("there is no such Python"))
    failed = client.receive()
    assert isinstance(failed, m.Failed)
    assert (failed.id, failed.failure.kind) == (1, "unavailable")
    assert "there is no such Python" in failed.failure.message
    client.socket.close()


def test_a_daemon_that_speaks_nonsense_is_no_daemon(daemon: Daemon) -> None:
    path = daemon.folder / "nonsense.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        from threading import Thread

        answering = Thread(target=_answer_nonsense, args=(listener,))
        answering.start()
        from compilepool.client import connect

        with pytest.raises(PoolUnavailable, match="not a compilepool peer") as caught:
            connect(path, autostart=False, fallback=False)
        answering.join(timeout=30)
    assert isinstance(caught.value, CompilePoolError)


def _answer_nonsense(listener: socket.socket) -> None:
    with listener.accept()[0] as peer:
        peer.sendall(b"220 smtp.example.com ESMTP\r\n")
        peer.recv(100)


def test_two_thousand_connections_that_say_nothing_cost_little(daemon: Daemon) -> None:
    kernel = pointwise("among_the_idle")
    with daemon.pool() as pool:
        pool.warm(kernel.name, kernel.source).result(timeout=120)
        before = pool.status().rss
        idle = []
        for _ in range(2000):
            connected = socket.socket(socket.AF_UNIX)
            connected.connect(str(daemon.socket))
            connected.sendall(b"".join(Connection(End.CLIENT).send(m.Hello(1, "client", ALIEN))))
            idle.append(connected)
        for connected in idle:
            assert connected.recv(1) == b"C"
        assert isinstance(pool.warm(kernel.name, kernel.source).result(timeout=60), m.Compiled)
        assert pool.status().rss - before < 100 << 20
        for connected in idle:
            connected.close()
        eventually_equal(lambda: pool.status().clients, 1)


def test_a_client_that_never_reads_is_not_read_from_and_costs_little(daemon: Daemon) -> None:
    kernel = wanted("unread", pointwise("unread").source)
    deaf = RawPeer(daemon)
    with daemon.pool() as pool:
        pool.warm(kernel.name, kernel.source).result(timeout=120)
        before = pool.status().rss
        deaf.send(m.Hello(1, "client", detect()))
        deaf.socket.setblocking(False)
        sent = 0
        with suppress(BlockingIOError):
            while sent < 100_000:
                sent += 1
                deaf.send(kernel.message(sent, "foreground"), kernel.canonical)
        assert sent < 100_000, "the daemon stopped reading"
        assert isinstance(pool.warm(kernel.name, kernel.source).result(timeout=60), m.Compiled)
        assert pool.status().rss - before < 100 << 20
        deaf.socket.close()
        eventually_equal(lambda: pool.status().clients, 1)


def test_what_the_daemon_would_not_take_is_refused_here_and_harms_nobody(shared_daemon: Daemon) -> None:
    kernel = pointwise("after_the_huge")
    with shared_daemon.pool() as pool:
        with pytest.raises(Refused, match="its message would have .* takes at most 67108864"):
            pool.compile_source("huge", "#" * (65 << 20)).result(timeout=60)
        with pytest.raises(Refused, match="its name has 5000 characters; at most 1000"):
            pool.compile_source("n" * 5000, "x = 1").result(timeout=60)
        assert isinstance(pool.warm(kernel.name, kernel.source).result(timeout=60), m.Compiled)


@pytest.mark.parametrize("key", ["../../outside", "x\0y", "", "a" * 100_000, "AB" * 32])
def test_a_key_is_never_a_path(daemon: Daemon, key: str) -> None:
    """What is no object is removed: nothing outside the store may be taken for one."""
    outside = daemon.folder / "outside.cpo"
    outside.write_bytes(b"somebody's")
    with daemon.pool() as pool:
        with pytest.raises(Refused, match="has no object"):
            pool.read_object(key)
        assert pool.status().running == 0
    assert outside.read_bytes() == b"somebody's"
