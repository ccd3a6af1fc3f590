"""Frames: one message header and any number of opaque segments, each announced before it is sent.

    +--------+----------------+---------------+-----------------------+--------+----------------+
    | "CPL1" | header length  | segment count | length of each segment| header | segments ...   |
    | 4 bytes| u32            | u32           | u64 each              |        |                |
    +--------+----------------+---------------+-----------------------+--------+----------------+

All integers are big-endian. The header is small and typed (see `messages`); the segments are bytes that
nobody on the way looks into: kernel sources, pickles, binaries.

Every length is checked against `Limits` when it is announced, before a byte of what it announces is
kept, so a peer makes us hold at most `Limits.frame` bytes.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compilepool.protocol.errors import ProtocolError, Refused

MAGIC = b"CPL1"
_PRELUDE = struct.Struct(">4sII")
_LENGTH = struct.Struct(">Q")

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that a peer may announce, in bytes (segments: a count)."""

    header: int
    segments: int
    frame: int


# A header lists every file of an answer at about 150 bytes each: 1 MiB is 7,000 files.
# 8,192 segments: a kernel of 1,000 configs with 8 files each.
# 512 MiB: the largest of the recorded kernels answers with 5 MB; a hundred times that is a mistake or an attack.
OPEN_LIMITS = Limits(header=1 << 20, segments=8192, frame=512 << 20)

# From a client: a kernel's source, a pickled callable, or a result of another host.
CLIENT_LIMITS = Limits(header=1 << 20, segments=8192, frame=64 << 20)

# Before the greeting a peer is unknown, and a greeting is under a kilobyte.
GREETING_LIMITS = Limits(header=64 << 10, segments=0, frame=64 << 10)


@dataclass(frozen=True, slots=True)
class Frame:
    """One received frame: the undecoded header and its segments."""

    header: bytes
    segments: tuple[bytes, ...]


def encode_frame(header: bytes, segments: Sequence[Buffer] = ()) -> list[Buffer]:
    """The frame as buffers to write in this order; segments are passed through uncopied."""
    lengths = b"".join(_LENGTH.pack(len(segment)) for segment in segments)
    return [_PRELUDE.pack(MAGIC, len(header), len(segments)) + lengths + header, *segments]


class FrameDecoder:
    """Bytes in, frames out; raises ProtocolError at the first byte that can't belong to a legal frame."""

    def __init__(self, limits: Limits = GREETING_LIMITS) -> None:
        self.limits = limits
        self._buffer = bytearray()
        self._lengths: tuple[int, ...] | None = None

    def __repr__(self) -> str:
        return f"<FrameDecoder [buffered: {len(self._buffer)} bytes]>"

    @property
    def buffered(self) -> int:
        """Bytes that belong to a frame which has not ended."""
        return len(self._buffer)

    @property
    def mid_frame(self) -> bool:
        """Whether a frame has begun and not ended: an EOF now is a truncation."""
        return bool(self._buffer) or self._lengths is not None

    def feed(self, received: Buffer) -> Iterator[Frame]:
        """Yield each frame that the bytes so far complete."""
        self._buffer += received
        while (frame := self._next()) is not None:
            yield frame

    def _next(self) -> Frame | None:
        if self._lengths is None:
            self._lengths = self._announced()
        if self._lengths is None or len(self._buffer) < sum(self._lengths):
            return None
        header, *segments = self._take(self._lengths)
        self._lengths = None
        return Frame(header, tuple(segments))

    def _announced(self) -> tuple[int, ...] | None:
        """Lengths of the header and the segments, checked, once they have all arrived."""
        if len(self._buffer) < _PRELUDE.size:
            self._check_magic(bytes(self._buffer[: len(MAGIC)]))
            return None
        magic, header, count = _PRELUDE.unpack_from(self._buffer)
        self._check_magic(magic)
        self._check("header bytes", header, self.limits.header)
        self._check("segments", count, self.limits.segments)
        end = _PRELUDE.size + count * _LENGTH.size
        if len(self._buffer) < end:
            return None
        sizes = tuple(size for (size,) in _LENGTH.iter_unpack(self._buffer[_PRELUDE.size : end]))
        self._check("frame bytes", header + sum(sizes), self.limits.frame)
        del self._buffer[:end]
        return (header, *sizes)

    def _take(self, lengths: tuple[int, ...]) -> list[bytes]:
        parts, start = [], 0
        with memoryview(self._buffer) as view:
            for length in lengths:
                parts.append(bytes(view[start : start + length]))
                start += length
        del self._buffer[:start]
        if not self._buffer:
            # A new one: what was in it does not stay in its memory.
            self._buffer = bytearray()
        return parts

    @staticmethod
    def _check_magic(magic: bytes) -> None:
        if not MAGIC.startswith(magic):
            raise ProtocolError(f"this is not a compilepool peer: its bytes begin with {magic!r}, not {MAGIC!r}")

    @staticmethod
    def _check(what: str, announced: int, most: int) -> None:
        if announced > most:
            raise ProtocolError(f"a frame announces {announced} {what}; at most {most} are taken here")


def check_lengths(header: bytes, segments: Sequence[Buffer], limits: Limits) -> None:
    """Raise Refused here instead of being refused there, which ends the connection."""
    size = len(header) + sum(map(len, segments))
    for what, length, most in (("header", len(header), limits.header), ("message", size, limits.frame)):
        if length > most:
            raise Refused(f"its {what} would have {length} bytes, and the daemon takes at most {most}")
