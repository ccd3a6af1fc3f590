"""A client of the soak: asks batch after batch, judges each answer, and keeps a journal of both.

    python -m tests.soak_client SOCKET JOURNAL STOP SEED

A line of the journal is [what, request, outcome]: "sent" before it is sent, then "answered", "wrong" or "unanswered".
"""

import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import InvalidStateError, wait as wait_for
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from compilepool.client import Pool, connect
from compilepool.future import PoolFuture
from compilepool.kernel import wanted
from compilepool.protocol import messages as m
from compilepool.protocol.contents import verify
from compilepool.protocol.errors import CompilePoolError
from tests.sources import pointwise

PATIENCE_SECONDS = 240.0
# A fault's source, and what may be answered beside what any request may meet.
FAULTS: dict[str, tuple[str, set[str]]] = {
    "exit": ("import os; os._exit(5)\n", set()),
    "segfault": ("import os; os.kill(os.getpid(), 11)\n", set()),
    "syntax": ("this is no Python\n", {"compile-error"}),
    "loop": ("while True: pass\n", {"timeout"}),
    "grow": ("held = []\nwhile True: held.append(b'x' * (16 << 20))\n", {"out-of-memory"}),
    "print": ("while True: print('and so on ' * 10000)\n", {"compile-error"}),
    "stop": ("import os; os.kill(os.getpid(), 19)\n", {"timeout"}),
}
# The pool was lost twice; the worker was killed; workers were killed twice, and the kernel is not tried again.
ANY = {"unavailable", "worker-crashed", "refused"}
HANGS = ("loop", "stop")

Note = Callable[[str, str, str], None]
Answer = tuple[m.AnyMessage | CompilePoolError, Sequence[bytes]]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: its number in the journal, a fault's name ('': a kernel that compiles), and its constant."""

    number: str
    fault: str
    constant: int

    @property
    def name(self) -> str:
        """The kernel's."""
        return f"{self.fault or 'good'}_{self.constant}"

    @property
    def source(self) -> str:
        """The kernel, and its fault before it."""
        prelude = FAULTS[self.fault][0] if self.fault else ""
        return pointwise(self.name, f"value + {self.constant}.0", prelude).source


def main(socket: Path, journal: Path, stop: Path, seed: int) -> None:
    """Ask until `stop` exists."""
    chance, numbers = random.Random(seed), itertools.count(1)
    with journal.open("a", buffering=1) as lines, connect(socket, autostart=False) as pool:

        def note(*line: str) -> None:
            lines.write(json.dumps(line) + "\n")

        while not stop.exists():
            batch = [_choose(chance, str(next(numbers))) for _ in range(chance.randint(1, 12))]
            _ask(pool, batch, chance, note)


def _choose(chance: random.Random, number: str) -> Asked:
    fault = chance.choice(list(FAULTS)) if chance.random() < 0.25 else ""
    # Some are asked for by everybody, so that they are joined, or found; most are new.
    constant = chance.randrange(20) if chance.random() < 0.3 else chance.randrange(100, 10**6)
    return Asked(number, fault, constant)


def _ask(pool: Pool, batch: list[Asked], chance: random.Random, note: Note) -> None:
    futures: dict[PoolFuture[Answer], Asked] = {}
    for asked in batch:
        note("sent", asked.number, "")
        futures[_request(pool, asked)] = asked
    for future in chance.sample(list(futures), len(futures) // 8):
        future.cancel()
    without_pool = False
    done, _ = wait_for(futures, timeout=PATIENCE_SECONDS)
    for future, asked in futures.items():
        if future not in done:
            note("unanswered", asked.number, asked.name)
        elif future.cancelled():
            note("answered", asked.number, "cancelled")
        else:
            outcome, wrong = _judge(asked, *future.result())
            note("wrong" if wrong else "answered", asked.number, f"{outcome} {wrong}")
            without_pool |= outcome == "unavailable"
    if without_pool:
        # As a program that now compiles by itself: it does not come back in the same millisecond.
        time.sleep(chance.random())


def _request(pool: Pool, asked: Asked) -> PoolFuture[Answer]:
    kernel, future = wanted(asked.name, asked.source), PoolFuture[Answer]()

    def make(number: int) -> m.Compile:
        return kernel.message(number, "background", 2.0 if asked.fault in HANGS else None)

    def answered(answer: m.AnyMessage | CompilePoolError, segments: Sequence[bytes]) -> None:
        with suppress(InvalidStateError):
            future.set_result((answer, segments))

    pool.request(make, (kernel.canonical,), answered, future)
    return future


def _judge(asked: Asked, answer: m.AnyMessage | CompilePoolError, segments: Sequence[bytes]) -> tuple[str, str]:
    """The outcome's name, and what is wrong with it ('': nothing)."""
    if isinstance(answer, CompilePoolError):
        expected = ANY | (FAULTS[asked.fault][1] if asked.fault else set())
        return answer.kind, "" if answer.kind in expected else str(answer)[:500]
    if asked.fault or not isinstance(answer, m.Compiled):
        return "compiled", f"{asked.name} can't be answered by {answer!r:.300}"
    verify(answer.contents, segments)
    files = dict(zip([file for unit in answer.contents.units for file in unit.files], segments[1:], strict=True))
    constant = f"dense<{asked.constant:.6e}>".encode() if asked.constant else b"dense<0.000000e+00>"
    if constant not in files[f"{asked.name}.ttir"]:
        return answer.origin, f"{asked.name}.ttir lacks {constant!r}"
    return answer.origin, ""


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
