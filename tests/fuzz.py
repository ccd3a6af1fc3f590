"""Feeds damaged conversations to both ends of the protocol until the time is up.

    python -m tests.fuzz [--minutes 10] [--seed N]

Every round starts from real messages (the golden ones), damages them (bits, bytes, lengths, order, cuts), and sends
them in pieces. Whatever arrives, an end yields messages or raises ProtocolError; it keeps no more bytes than its
limits allow; after an error it stays broken; and what it took for a message can be sent again as the same message.
"""

import argparse
import random
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from compilepool.protocol import messages as m
from compilepool.protocol.connection import Connection, End
from compilepool.protocol.errors import ProtocolError
from compilepool.protocol.frames import OPEN_LIMITS
from compilepool.protocol.toolchain import Toolchain
from tests.golden.samples import FOLDER

LENGTHS = (0, 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
ALIEN = Toolchain("Alien 1.0", "/nowhere", "linux-x86_64", "0", "0", "", "0")
# What a decoder may hold beyond the frame that it announced: one received chunk.
CHUNK = 4096


class Finding(Exception):
    """The decoder did something else than its rules allow; the message says how to see it again."""


class Fuzzer:
    """Damaged conversations from a seed; `rounds` counts them, `messages` what was taken for a message."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rounds = 0
        self.messages = 0
        self.refused = 0
        self._random = random.Random(seed)
        self._samples = [path.read_bytes() for path in sorted(Path(FOLDER).glob("*.bin"))]
        welcome = m.Welcome(m.PROTOCOL_MIN, m.PROTOCOL_MAX, [], "fuzz", 2)
        self._kinds = [
            self._kind(End.DAEMON, m.Hello(m.PROTOCOL_MAX, "client", ALIEN)),
            self._kind(End.DAEMON, m.Hello(m.PROTOCOL_MAX, "forkserver", ALIEN)),
            self._kind(End.CLIENT, welcome),
            self._kind(End.FORKSERVER, welcome),
        ]

    def _kind(self, end: End, greeting: m.AnyMessage) -> tuple[End, bytes, list[bytes]]:
        """An end, what greets it, and the samples that may follow."""
        greets = b"".join(Connection(end).send(greeting))
        return end, greets, [sample for sample in self._samples if _taken(end, greets + sample)]

    def round(self) -> None:
        """One conversation with a new end; raises Finding."""
        self.rounds += 1
        end, greeting, samples = self._random.choice(self._kinds)
        connection = Connection(end)
        raw = self._conversation([greeting, *self._random.choices(samples, k=5)])
        try:
            self._feed(connection, raw)
        except Exception as exc:
            raise Finding(f"seed {self.seed}, round {self.rounds}: {connection} got {raw!r}: {exc!r}") from exc

    def _feed(self, connection: Connection, raw: bytes) -> None:
        for chunk in self._pieces(raw):
            try:
                for received in connection.receive(chunk):
                    self.messages += 1
                    self._send_again(connection, received.message, received.segments)
            except ProtocolError:
                self.refused += 1
                self._stays_broken(connection)
                return
            held = connection._frames
            if len(held._buffer) > held.limits.frame + CHUNK:
                raise AssertionError(f"it holds {len(held._buffer)} bytes")

    def _send_again(self, connection: Connection, message: m.AnyMessage, segments: Sequence[bytes]) -> None:
        if isinstance(message, m.Greeting):
            return
        raw = b"".join(Connection(End.DAEMON).send(message, segments))
        other = Connection(connection.end)
        other._decoder, other._frames.limits = connection._decoder, OPEN_LIMITS
        (again,) = other.receive(raw)
        # By what it looks like: a number that is none is not equal to itself.
        if (repr(again.message), again.segments) != (repr(message), tuple(segments)):
            raise AssertionError(f"{message} came back as {again}")

    def _stays_broken(self, connection: Connection) -> None:
        try:
            list(connection.receive(b""))
        except ProtocolError:
            return
        raise AssertionError("it went on after an error")

    # ---- damage

    def _conversation(self, frames: list[bytes]) -> bytes:
        ways = (self._flip, self._replace, self._cut, self._length, self._insert, self._splice)
        for _ in range(self._random.choice((0, 1, 1, 2, 5))):
            index = self._random.randrange(len(frames))
            frames[index] = self._random.choice(ways)(frames[index])
        return b"".join(frames)

    def _at(self, raw: bytes) -> int:
        return self._random.randrange(len(raw) + 1)

    def _flip(self, raw: bytes) -> bytes:
        if not raw:
            return raw
        index = self._random.randrange(len(raw))
        return raw[:index] + bytes([raw[index] ^ 1 << self._random.randrange(8)]) + raw[index + 1 :]

    def _replace(self, raw: bytes) -> bytes:
        index = self._at(raw)
        return raw[:index] + self._random.randbytes(self._random.randrange(1, 9)) + raw[index + 8 :]

    def _cut(self, raw: bytes) -> bytes:
        return raw[: self._at(raw)]

    def _insert(self, raw: bytes) -> bytes:
        index = self._at(raw)
        return raw[:index] + self._random.randbytes(self._random.randrange(64)) + raw[index:]

    def _splice(self, raw: bytes) -> bytes:
        other = self._random.choice(self._samples)
        return raw[: self._at(raw)] + other[self._at(other) :]

    def _length(self, raw: bytes) -> bytes:
        """Announce other lengths: of the header, of the segments, or how many there are."""
        length = self._random.choice(LENGTHS)
        form, index = self._random.choice(((">I", 4), (">I", 8), (">Q", 12)))
        written = struct.pack(form, length % 2 ** (8 * struct.calcsize(form)))
        return raw[:index] + written + raw[index + len(written) :]

    def _pieces(self, raw: bytes) -> list[bytes]:
        size = self._random.choice((1, 7, CHUNK))
        return [raw[start : start + size] for start in range(0, len(raw), size)]


def _taken(end: End, raw: bytes) -> bool:
    try:
        return bool(list(Connection(end).receive(raw)))
    except ProtocolError:
        return False


def main() -> None:
    """Fuzz until the time is up; exit status 1 with the first finding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options = parser.parse_args()
    fuzzer = Fuzzer(options.seed)
    deadline = time.monotonic() + 60 * options.minutes
    try:
        while time.monotonic() < deadline:
            fuzzer.round()
    except Finding as exc:
        sys.exit(f"FOUND: {exc}")
    print(
        f"nothing found in {options.minutes:g} minutes: {fuzzer.rounds} conversations, {fuzzer.messages} messages, "
        f"{fuzzer.refused} refused (seed {options.seed})"
    )


if __name__ == "__main__":
    main()
