from typing import get_args

import msgspec
import pytest

from compilepool.protocol import messages as m
from compilepool.protocol.frames import OPEN_LIMITS, FrameDecoder
from tests.golden.samples import FOLDER, SAMPLES, encoded, readable

EVERY = m.ToClient | m.ToForkserver | m.FromClient | m.FromForkserver | m.Welcome | m.Hello


@pytest.mark.parametrize("name", SAMPLES)
def test_todays_bytes_are_yesterdays(name: str) -> None:
    assert encoded(name) == (FOLDER / f"{name}.bin").read_bytes()
    assert readable(name) == (FOLDER / f"{name}.json").read_text()


@pytest.mark.parametrize("name", SAMPLES)
def test_yesterdays_bytes_are_understood(name: str) -> None:
    (frame,) = FrameDecoder(OPEN_LIMITS).feed((FOLDER / f"{name}.bin").read_bytes())
    message = msgspec.msgpack.Decoder(EVERY).decode(frame.header)
    assert (message, frame.segments) == SAMPLES[name]


def test_every_message_has_a_sample() -> None:
    sampled = {type(message) for message, _ in SAMPLES.values()}
    assert sampled == set(get_args(EVERY))
