"""What a forkserver and its workers hand each other.

    order    forkserver to worker   an anonymous memory file: an `Order` and its body (source, or pickled callable)
    begin    forkserver to worker   on the control socket: LEAD or ASSISTANT, with the descriptors of order and board
    claims   worker to forkserver   on the control socket: how many configs nobody has taken
    note     worker to forkserver   an anonymous memory file: where the worker is (`note`)
    asking   both ways              on the control socket: TTIR that the backend is to compile, and what came of it
    answer   worker to forkserver   an anonymous memory file, read when the worker is gone: an `Answer` with segments

Memory files need no reader at the other end, can't be half read, and are no pipe that a grandchild could hold open.
"""

import os
import struct
from collections.abc import Sequence

import msgspec

from compilepool.protocol.errors import Failure
from compilepool.protocol.frames import OPEN_LIMITS, Buffer, Frame, FrameDecoder, encode_frame
from compilepool.protocol.messages import Call, Contents, Jit, Lowering, Recipe

LEAD, ASSISTANT = b"lead", b"assistant"
CLAIMS = struct.Struct("=I")

_encode = msgspec.msgpack.Encoder().encode


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to do, and the scratch directory to do it in; `backends`: toolchains that may be asked for parts of it."""

    job: int
    task: Recipe | Call | Lowering | Jit
    cache_dir: str
    scratch: str
    backends: list[str] = []


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What became of it: contents, or a failure."""

    contents: Contents | None = None
    failure: Failure | None = None


decode_order = msgspec.msgpack.Decoder(Order).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode


def write(descriptor: int, message: msgspec.Struct, segments: Sequence[Buffer]) -> None:
    """Put a message into an empty memory file."""
    with open(descriptor, "wb", closefd=False) as file:
        file.writelines(encode_frame(_encode(message), segments))


def read(descriptor: int) -> Frame:
    """The message in a memory file; ProtocolError or ValueError if there is none.

    Leaves the file's position alone: other processes share it.
    """
    (frame,) = FrameDecoder(OPEN_LIMITS).feed(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
    return frame
