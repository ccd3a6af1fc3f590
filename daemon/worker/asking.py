"""How a worker asks the daemon, through its forkserver, and waits: its control socket, and memory files.

worker --LOWER, file of a Question and TTIR--> forkserver --Lower--> daemon
worker <--LOWERED, file of an Answer---------- forkserver <--Compiled, Failed--
"""

import os
import socket
from collections.abc import Sequence

import msgspec

from compilepool.daemon.worker.exchange import Answer, decode_answer, read, write
from compilepool.protocol.contents import DamagedContents, verify
from compilepool.protocol.errors import ProtocolError
from compilepool.protocol.messages import Contents, Lowering

LOWER, LOWERED = b"lower", b"lowered"
# One message, with at most one descriptor.
MESSAGE_BYTES = 64


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is asked; its body is TTIR."""

    task: Lowering


_decode_question = msgspec.msgpack.Decoder(Question).decode


def ask_over(control: socket.socket, task: Lowering, ttir: bytes) -> tuple[Contents, tuple[bytes, ...]] | None:
    """What the backend made; None when nothing comes of it."""
    _send(control, LOWER, Question(task), (ttir,))
    told, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
    if told != LOWERED or not descriptors:
        return None
    try:
        frame = read(descriptors[0])
        contents = decode_answer(frame.header).contents
        if contents is None or len(contents.units) != 1:
            return None
        verify(contents, frame.segments)
    except (ProtocolError, DamagedContents, ValueError):
        return None
    finally:
        os.close(descriptors[0])
    return contents, frame.segments


def read_question(descriptor: int) -> tuple[Lowering, bytes]:
    """What a worker asks; ProtocolError or ValueError if it is nothing."""
    frame = read(descriptor)
    return _decode_question(frame.header).task, frame.segments[0]


def answer(control: socket.socket, contents: Contents | None, segments: Sequence[bytes]) -> None:
    """Tell a worker what came of it (None: nothing); one that has ended is told nothing."""
    try:
        _send(control, LOWERED, Answer(contents=contents), segments)
    except OSError:
        return


def _send(control: socket.socket, what: bytes, message: Question | Answer, segments: Sequence[bytes]) -> None:
    descriptor = os.memfd_create("compilepool-asking")
    try:
        write(descriptor, message, segments)
        socket.send_fds(control, [what], [descriptor])
    finally:
        os.close(descriptor)
