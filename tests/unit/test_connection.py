import msgspec
import pytest

from compilepool.protocol import messages as m
from compilepool.protocol.connection import Connection, End, State, choose_protocol
from compilepool.protocol.errors import ProtocolError
from compilepool.protocol.frames import encode_frame
from compilepool.protocol.toolchain import Toolchain

TOOLCHAIN = Toolchain("CPython 3.12", "/usr/bin/python", "linux-x86_64", "3.7.1", "2.13.0", "", "0.1.0")
WELCOME = m.Welcome(1, 1, ["compile-source"], "instance")
RECIPE = m.Recipe("kernel", {}, {})


def raw(connection: Connection, message: m.AnyMessage, *segments: bytes) -> bytes:
    return b"".join(connection.send(message, segments))


def greeted(role: str = "client") -> tuple[Connection, Connection]:
    """A daemon's and a peer's end after the greeting, back to back."""
    daemon, peer = Connection(End.DAEMON), Connection(End.CLIENT if role == "client" else End.FORKSERVER)
    list(peer.receive(raw(daemon, WELCOME)))
    list(daemon.receive(raw(peer, m.Hello(1, role, TOOLCHAIN))))  # type: ignore[arg-type]
    return daemon, peer


def test_greeting_opens_both_ends() -> None:
    daemon, client = greeted()
    assert daemon.state is client.state is State.OPEN


def test_request_and_answer() -> None:
    daemon, client = greeted()
    (request,) = daemon.receive(raw(client, m.Compile(7, RECIPE), b"source"))
    assert request.message == m.Compile(7, RECIPE)
    assert request.segments == (b"source",)
    (answer,) = client.receive(raw(daemon, m.StartForkserver()))
    assert answer.message == m.StartForkserver()


def test_nothing_before_the_greeting() -> None:
    with pytest.raises(ProtocolError, match="may send now"):
        list(Connection(End.DAEMON).receive(raw(Connection(End.CLIENT), m.Cancel(1))))


def test_no_second_greeting() -> None:
    daemon, client = greeted()
    with pytest.raises(ProtocolError, match="may send now"):
        list(daemon.receive(raw(client, m.Hello(1, "client"))))


def test_a_forkserver_is_no_client() -> None:
    daemon, forkserver = greeted("forkserver")
    with pytest.raises(ProtocolError, match="may send now"):
        list(daemon.receive(raw(forkserver, m.Stop(1))))


def test_an_unknown_message_is_refused() -> None:
    daemon, _ = greeted()
    frame = b"".join(encode_frame(msgspec.msgpack.encode({"type": "format-disk", "id": 1})))
    with pytest.raises(ProtocolError, match="format-disk"):
        list(daemon.receive(frame))


@pytest.mark.parametrize("header", [b"", b"\xc1", b"\x93", msgspec.msgpack.encode([1, 2]), b"\x91" * 5000])
def test_a_header_that_is_no_message_is_refused(header: bytes) -> None:
    daemon, _ = greeted()
    with pytest.raises(ProtocolError):
        list(daemon.receive(b"".join(encode_frame(header))))


def test_unknown_fields_are_refused_but_in_a_greeting() -> None:
    daemon, _ = greeted()
    frame = b"".join(encode_frame(msgspec.msgpack.encode({"type": "cancel", "id": 1, "force": True})))
    with pytest.raises(ProtocolError, match="force"):
        list(daemon.receive(frame))
    hello = {"type": "hello", "protocol": 1, "role": "client", "from-the-future": True}
    fresh = Connection(End.DAEMON)
    list(fresh.receive(b"".join(encode_frame(msgspec.msgpack.encode(hello)))))
    assert fresh.state is State.OPEN


def test_a_message_comes_with_its_segments() -> None:
    daemon, client = greeted()
    with pytest.raises(ProtocolError, match="1 segments, not 0"):
        list(daemon.receive(raw(client, m.Compile(1, RECIPE))))


def test_a_protocol_that_is_not_spoken() -> None:
    with pytest.raises(ProtocolError, match="protocol 9"):
        list(Connection(End.DAEMON).receive(raw(Connection(End.CLIENT), m.Hello(9, "client"))))


def test_a_broken_connection_stays_broken() -> None:
    daemon, client = greeted()
    with pytest.raises(ProtocolError):
        list(daemon.receive(b"garbage"))
    with pytest.raises(ProtocolError, match="already failed"):
        list(daemon.receive(raw(client, m.Cancel(1))))


def test_eof_inside_a_frame_is_an_error() -> None:
    daemon, client = greeted()
    list(daemon.receive(raw(client, m.Cancel(1))[:-1]))
    with pytest.raises(ProtocolError, match="middle of a frame"):
        daemon.receive_eof()


def test_eof_between_frames_is_not() -> None:
    daemon, client = greeted()
    list(daemon.receive(raw(client, m.Cancel(1))))
    daemon.receive_eof()


@pytest.mark.parametrize(("low", "high", "chosen"), [(1, 1, 1), (1, 9, 1), (2, 9, None), (0, 0, None)])
def test_choose_protocol(low: int, high: int, chosen: int | None) -> None:
    assert choose_protocol(m.Welcome(low, high, [], "")) == chosen


def test_toolchain_names_what_differs() -> None:
    other = msgspec.structs.replace(TOOLCHAIN, triton="3.6.0")
    assert TOOLCHAIN.differences(other) == ["triton: 3.7.1, not 3.6.0"]
    assert TOOLCHAIN.fingerprint != other.fingerprint
