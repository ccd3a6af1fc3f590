import struct

import pytest

from compilepool.protocol.errors import ProtocolError
from compilepool.protocol.frames import GREETING_LIMITS, OPEN_LIMITS, FrameDecoder, Limits, encode_frame

SMALL = Limits(header=100, segments=3, frame=1000)


def encoded(header: bytes, *segments: bytes) -> bytes:
    return b"".join(encode_frame(header, segments))


def test_a_frame_survives() -> None:
    (frame,) = FrameDecoder(SMALL).feed(encoded(b"head", b"one", b"", b"three"))
    assert frame.header == b"head"
    assert frame.segments == (b"one", b"", b"three")


def test_several_frames_in_one_read() -> None:
    decoder = FrameDecoder(SMALL)
    frames = list(decoder.feed(encoded(b"a") + encoded(b"b", b"x") + encoded(b"c")[:5]))
    assert [frame.header for frame in frames] == [b"a", b"b"]
    assert decoder.mid_frame


@pytest.mark.parametrize(
    ("announced", "what"),
    [
        (struct.pack(">4sII", b"CPL1", 101, 0), "101 header bytes"),
        (struct.pack(">4sII", b"CPL1", 1, 4), "4 segments"),
        (struct.pack(">4sIIQ", b"CPL1", 1, 1, 2**63), "frame bytes"),
        (struct.pack(">4sIIQQ", b"CPL1", 1, 2, 999, 1), "1001 frame bytes"),
        (b"GET / HTTP/1.1", "not a compilepool peer"),
        (b"X", "not a compilepool peer"),
    ],
)
def test_what_is_too_large_is_refused_when_it_is_announced(announced: bytes, what: str) -> None:
    with pytest.raises(ProtocolError, match=what):
        list(FrameDecoder(SMALL).feed(announced))


def test_a_stranger_may_announce_little() -> None:
    with pytest.raises(ProtocolError, match="segments"):
        list(FrameDecoder(GREETING_LIMITS).feed(encoded(b"hello", b"payload")))


def test_the_largest_legal_header_passes() -> None:
    header = b"h" * OPEN_LIMITS.header
    (frame,) = FrameDecoder(OPEN_LIMITS).feed(encoded(header))
    assert frame.header == header
