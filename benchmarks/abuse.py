"""What a client notices while another one, on the same daemon, breaks every rule.

    python -m benchmarks.abuse [--rounds 400] [--json]

A well-behaved client asks for a kernel that the store has, one time after the other, alone and beside each kind of
abuser in turn, alternating; the figure is the ratio of the two medians. Abusers are processes of their own, each of
which does what it does as fast as one connection can; the daemon's memory is read before and after.
"""

import argparse
import contextlib
import itertools
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from compilepool.client import Pool, connect
from compilepool.corpus import bundled
from compilepool.kernel import wanted
from compilepool.protocol import messages as m
from compilepool.protocol.connection import Connection, End
from compilepool.protocol.detect import detect
from compilepool.protocol.frames import encode_frame
from compilepool.spawn import run_command

_RECORDED = bundled("llama_train")[0]
KERNEL = wanted(_RECORDED.name, _RECORDED.source)
BATCH = 20
IDLE_CONNECTIONS = 2000


@dataclass(frozen=True, slots=True)
class Measured:
    """Median latencies in seconds, the daemon's memory in bytes."""

    kind: str
    alone: float
    beside: float
    rss_before: int
    rss_during: int

    def text(self) -> str:
        """One line."""
        return (
            f"{self.kind:<24} {self.beside / self.alone:.2f}x the latency ({1e3 * self.alone:.2f} to "
            f"{1e3 * self.beside:.2f} ms); daemon {self.rss_before >> 20} MiB before, {self.rss_during >> 20} during"
        )


class Abuser:
    """One connection, or many, to the daemon at `path`."""

    def __init__(self, path: str) -> None:
        self._path = path

    def connect(self, *, greet: bool = True) -> socket.socket:
        """A new connection."""
        connected = socket.socket(socket.AF_UNIX)
        connected.connect(self._path)
        if greet:
            connected.sendall(_sent(m.Hello(m.PROTOCOL_MAX, "client", detect())))
        return connected

    def breaking(self, *sent: bytes, greet: bool = True) -> None:
        """Connect, send this, and read until the daemon closes; for ever."""
        while True:
            with self.connect(greet=greet) as connected:
                connected.sendall(b"".join(sent))
                connected.shutdown(socket.SHUT_WR)
                while connected.recv(1 << 16):
                    pass

    def truncated(self) -> None:
        """Frames that are cut in the middle."""
        self.breaking(_asked(1)[:-500])

    def huge(self) -> None:
        """Segments of 2^63 bytes are announced."""
        self.breaking(struct.pack(">4sIIQ", b"CPL1", 1, 1, 2**63))

    def unknown(self) -> None:
        """Messages that nobody knows."""
        self.breaking(b"".join(encode_frame(msgspec.msgpack.encode({"type": "open-sesame", "id": 1}))))

    def duplicate(self) -> None:
        """Ids that are used twice."""
        self.breaking(*(_asked(7) for _ in range(2)))

    def slow(self) -> None:
        """A hundred connections that send a byte a second each."""
        connections = [self.connect() for _ in range(100)]
        frame = _asked(1)
        for byte in frame:
            for connected in connections:
                connected.send(bytes([byte]))
            time.sleep(1.0)

    def idle(self) -> None:
        """Two thousand connections that say nothing more."""
        connections = [self.connect() for _ in range(IDLE_CONNECTIONS)]
        for connected in connections:
            # The daemon's welcome: it has taken them all.
            connected.recv(1 << 16)
        print(len(connections), flush=True)
        time.sleep(1e6)

    def deaf(self) -> None:
        """Asks, and never reads an answer: until the daemon hangs up, and again."""
        while True:
            with self.connect() as connected, contextlib.suppress(OSError):
                for number in itertools.count(1):
                    connected.sendall(_asked(number))


KINDS: dict[str, Callable[[Abuser], None]] = {
    "truncated frames": Abuser.truncated,
    "lengths of 2^63": Abuser.huge,
    "unknown types": Abuser.unknown,
    "duplicate ids": Abuser.duplicate,
    "one byte a second": Abuser.slow,
    "2000 idle connections": Abuser.idle,
    "never reads": Abuser.deaf,
}


def _asked(number: int) -> bytes:
    """A request for what the store has."""
    return _sent(KERNEL.message(number, "foreground"), KERNEL.canonical)


def _sent(message: m.AnyMessage, *segments: bytes) -> bytes:
    return b"".join(Connection(End.CLIENT).send(message, segments))


@contextmanager
def _abused(socket_path: Path, kind: str) -> Iterator[None]:
    abuser = subprocess.Popen([sys.executable, "-m", "benchmarks.abuse", "--be", kind, "--socket", str(socket_path)],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        if kind.endswith("idle connections"):
            assert abuser.stdout is not None
            abuser.stdout.readline()
        else:
            # An interpreter's start; an abuser that is late makes the figure better than it is, so it gets enough.
            time.sleep(2.0)
        yield
    finally:
        abuser.kill()
        abuser.communicate()


def _latencies(pool: Pool, rounds: int) -> list[float]:
    latencies = []
    for _ in range(rounds):
        started = time.perf_counter()
        pool.warm(KERNEL.name, KERNEL.source, priority="foreground").result(timeout=60)
        latencies.append(time.perf_counter() - started)
    return latencies


def _measure(pool: Pool, path: Path, kind: str, rounds: int) -> Measured:
    before = pool.status().rss
    alone: list[float] = []
    beside: list[float] = []
    for _ in range(rounds // (4 * BATCH)):
        alone += _latencies(pool, 2 * BATCH)
        with _abused(path, kind):
            beside += _latencies(pool, 4 * BATCH)
            during = pool.status().rss
        alone += _latencies(pool, 2 * BATCH)
    return Measured(kind, statistics.median(alone), statistics.median(beside), before, during)


def main() -> None:
    """Print a line for each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--be", choices=list(KINDS), help=argparse.SUPPRESS)
    parser.add_argument("--socket", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be:
        KINDS[options.be](Abuser(options.socket))
        return
    print(f"{os.cpu_count()} cores; {options.rounds} answers from the store for each kind")
    with tempfile.TemporaryDirectory(prefix="compilepool-abuse-") as folder:
        path = Path(folder) / "pool.sock"
        served = ("--idle-exit", "30", "--socket", str(path), "--store", f"{folder}/store")
        run_command("serve", "--detach", *served, timeout=30)
        with connect(path, autostart=False, fallback=False) as pool:
            _latencies(pool, BATCH)
            for kind in KINDS:
                measured = _measure(pool, path, kind, options.rounds)
                print(json.dumps(asdict(measured)) if options.json else measured.text(), flush=True)
            pool.stop(now=True)


if __name__ == "__main__":
    main()
