"""One end of a connection, without IO: bytes in, messages out; messages in, bytes out.

The socket, its thread or task, and its timeouts belong to the caller; the client, the daemon, the forkserver and the
tests all drive this object. What may be received depends on which end we are and how far the greeting has come:

    end          before the greeting       after it
    DAEMON       Hello                     FromClient or FromForkserver, by the Hello's role
    CLIENT       Welcome, Refusal          ToClient
    FORKSERVER   Welcome, Refusal          ToForkserver

Anything else raises ProtocolError, after which the connection refuses to go on: a stream that was wrong once can't be
trusted to be in step again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

import msgspec

from compilepool.protocol import messages as m
from compilepool.protocol.errors import ProtocolError
from compilepool.protocol.frames import (
    CLIENT_LIMITS,
    GREETING_LIMITS,
    OPEN_LIMITS,
    Buffer,
    Frame,
    FrameDecoder,
    check_lengths,
    encode_frame,
)


class End(Enum):
    """Which end of the connection this object is."""

    DAEMON = "daemon"
    CLIENT = "client"
    FORKSERVER = "forkserver"


class State(Enum):
    """How far the connection has come."""

    GREETING = "greeting"
    OPEN = "open"
    BROKEN = "broken"


def _decoder(expected: Any) -> msgspec.msgpack.Decoder[m.AnyMessage]:
    return cast(msgspec.msgpack.Decoder[m.AnyMessage], msgspec.msgpack.Decoder(expected))


_GREETING = {
    End.DAEMON: _decoder(m.Hello),
    End.CLIENT: _decoder(m.Welcome | m.Refusal),
    End.FORKSERVER: _decoder(m.Welcome | m.Refusal),
}
_OPEN = {End.CLIENT: _decoder(m.ToClient), End.FORKSERVER: _decoder(m.ToForkserver)}
_LIMITS_FROM = {"client": CLIENT_LIMITS, "forkserver": OPEN_LIMITS, "backend": OPEN_LIMITS}
_OPEN_FROM = {
    "client": _decoder(m.FromClient),
    "forkserver": _decoder(m.FromForkserver),
    "backend": _decoder(m.FromForkserver),
}
_ENCODER = msgspec.msgpack.Encoder()

# How many payload segments a message has; a message that is not here has none.
_ONE_SEGMENT = (m.Compile, m.Execute, m.Spawn, m.Lower)
_CONTENTS = (m.Compiled, m.JobDone, m.Object, m.AddObject)


@dataclass(frozen=True, slots=True)
class Received:
    """A message that arrived, with its payload segments; `size`: bytes of both."""

    message: m.AnyMessage
    segments: tuple[bytes, ...] = ()
    size: int = 0


class Connection:
    """See the module's docstring. Not thread-safe: one caller receives, and sends are serialised by the caller."""

    def __init__(self, end: End) -> None:
        self.end = end
        self.state = State.GREETING
        self._frames = FrameDecoder(GREETING_LIMITS)
        self._decoder = _GREETING[end]

    def __repr__(self) -> str:
        return f"<Connection [{self.end.value} | {self.state.value} | {self._frames!r}]>"

    @property
    def buffered(self) -> int:
        """Bytes that have arrived and are no whole message yet."""
        return self._frames.buffered

    def receive(self, received: Buffer) -> Iterator[Received]:
        """Yield every message that these bytes complete; ProtocolError ends the connection."""
        if self.state is State.BROKEN:
            raise ProtocolError("this connection already failed; open a new one")
        try:
            for frame in self._frames.feed(received):
                yield self._decode(frame)
        except ProtocolError:
            self.state = State.BROKEN
            raise

    def receive_eof(self) -> None:
        """Say that the peer closed; ProtocolError if that cut a frame short."""
        if self._frames.mid_frame:
            self.state = State.BROKEN
            raise ProtocolError("the peer closed in the middle of a frame")

    def send(self, message: m.AnyMessage, segments: Sequence[Buffer] = ()) -> list[Buffer]:
        """The bytes of a message, as buffers to write in this order; Refused if the other end won't take as many."""
        header = _ENCODER.encode(message)
        check_lengths(header, segments, CLIENT_LIMITS if self.end is End.CLIENT else OPEN_LIMITS)
        return encode_frame(header, segments)

    def _decode(self, frame: Frame) -> Received:
        try:
            message = self._decoder.decode(frame.header)
        except msgspec.ValidationError as exc:
            raise ProtocolError(f"not a message that {self._whom()} may send now: {exc}") from exc
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise ProtocolError(f"not a message: {exc}") from exc
        _check_segments(message, len(frame.segments))
        if isinstance(message, m.Greeting):
            self._greeted(message)
        return Received(message, frame.segments, len(frame.header) + sum(map(len, frame.segments)))

    def _greeted(self, message: m.Greeting) -> None:
        if isinstance(message, m.Hello):
            if not m.PROTOCOL_MIN <= message.protocol <= m.PROTOCOL_MAX:
                spoken = f"{m.PROTOCOL_MIN} to {m.PROTOCOL_MAX}"
                raise ProtocolError(f"protocol {message.protocol} is not spoken here, only {spoken}")
            self._decoder = _OPEN_FROM[message.role]
            self._frames.limits = _LIMITS_FROM[message.role]
        else:
            self._decoder = _OPEN[self.end]
            self._frames.limits = OPEN_LIMITS
        self.state = State.OPEN

    def _whom(self) -> str:
        return "a peer" if self.end is End.DAEMON else "a daemon"


def choose_protocol(welcome: m.Welcome) -> int | None:
    """The newest protocol that both ends speak, or None."""
    newest = min(welcome.protocol_max, m.PROTOCOL_MAX)
    return newest if newest >= max(welcome.protocol_min, m.PROTOCOL_MIN) else None


def _check_segments(message: m.AnyMessage, count: int) -> None:
    expected = _expected_segments(message)
    if count != expected:
        raise ProtocolError(f"{type(message).__name__} comes with {expected} segments, not {count}")


def _expected_segments(message: m.AnyMessage) -> int:
    if isinstance(message, _ONE_SEGMENT):
        return 1
    if isinstance(message, _CONTENTS):
        contents = message.contents
        expected = 1 + sum(len(unit.files) for unit in contents.units)
        if len(contents.checksums) != expected:
            raise ProtocolError(f"{len(contents.checksums)} checksums for {expected} segments")
        return 1 if isinstance(message, m.Compiled) and message.without_files else expected
    return 0
