"""Frames under arbitrary splits, and arbitrary bytes instead of frames."""

import itertools

import msgspec
from hypothesis import given, strategies as st

from compilepool.protocol import messages as m
from compilepool.protocol.connection import Connection, End
from compilepool.protocol.errors import ProtocolError
from compilepool.protocol.frames import OPEN_LIMITS, FrameDecoder, encode_frame

FRAMES = st.lists(st.tuples(st.binary(max_size=50), st.lists(st.binary(max_size=50), max_size=4)), max_size=5)


def split(raw: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    return [raw[a:b] for a, b in itertools.pairwise(edges)]


@given(FRAMES, st.lists(st.integers(0, 10_000), max_size=20))
def test_any_split_gives_the_same_frames(frames: list[tuple[bytes, list[bytes]]], cuts: list[int]) -> None:
    raw = b"".join(b"".join(encode_frame(header, segments)) for header, segments in frames)
    decoder = FrameDecoder(OPEN_LIMITS)
    received = [frame for chunk in split(raw, cuts) for frame in decoder.feed(chunk)]
    assert [(f.header, list(f.segments)) for f in received] == frames
    assert not decoder.mid_frame


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_arbitrary_bytes_are_a_protocol_error_or_an_unfinished_frame(chunks: list[bytes]) -> None:
    decoder = FrameDecoder(OPEN_LIMITS)
    try:
        for chunk in chunks:
            for _ in decoder.feed(chunk):
                pass
    except ProtocolError:
        return


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
NAMES = ["welcome", "hello", "compile", "cancel", "get-status", "stop", "compiled", "spawn", "job-done", "ready"]
HEADERS = st.fixed_dictionaries(
    {"type": st.sampled_from(NAMES)},
    optional={"id": VALUES, "protocol": VALUES, "recipe": VALUES, "contents": VALUES, "role": VALUES, "job": VALUES},
)


@given(st.lists(HEADERS | VALUES, max_size=4), st.integers(0, 3), st.sampled_from(End))
def test_arbitrary_messages_are_taken_or_a_protocol_error(headers: list[object], segments: int, end: End) -> None:
    connection = Connection(end)
    try:
        for header in headers:
            frame = b"".join(encode_frame(msgspec.msgpack.encode(header), [b"x"] * segments))
            for received in connection.receive(frame):
                assert isinstance(received.message, m.Message | m.Greeting)
    except ProtocolError:
        return
