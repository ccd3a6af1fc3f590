"""Which running jobs get more workers, when slots are free and nothing is queued.

A job compiles its kernel's configs one after the other. Splitting every kernel costs 7 to 10 % CPU; not splitting any
lets one kernel of twenty configs hold up thirty others. So a job is split only while slots would stay empty: an
assistant takes configs until none is left that nobody has taken. The job with the most left to do is assisted first.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from compilepool.daemon.owner import Owner

# A config that is known to take less is not worth a process: a worker costs 30 to 40 ms of CPU.
WORTH_SECONDS = 0.05


@dataclass(slots=True)
class _Split:
    """A running job of several configs."""

    owner: Owner
    expected: float
    forkserver: int
    units: int
    unclaimed: int

    @property
    def left(self) -> float:
        """Expected CPU seconds of what nobody has taken."""
        return self.expected * self.unclaimed / self.units


@dataclass(frozen=True, slots=True)
class Assistant:
    """One that runs: whose slot it holds, and since when."""

    owner: Owner
    began: float


class Assistance:
    """Jobs that may be assisted, and the assistants that run; `holding`: how many slots of each owner those hold."""

    def __init__(self) -> None:
        self.holding: Counter[Owner] = Counter()
        self._count = 0
        self._jobs: dict[int, _Split] = {}
        self._running: dict[tuple[int, int], deque[Assistant]] = {}

    def __len__(self) -> int:
        return self._count

    def of(self, job: int) -> int:
        """How many assist a job."""
        return sum(len(running) for (assisted, _), running in self._running.items() if assisted == job)

    def progress(self, job: int, owner: Owner, forkserver: int, expected: float, unclaimed: int) -> None:
        """So many of the job's configs are taken by nobody; the first time, all but the one that its worker took."""
        split = self._jobs.get(job)
        if split is None:
            split = self._jobs[job] = _Split(owner, expected, forkserver, unclaimed + 1, unclaimed)
        # Assistants on their way have not taken theirs yet, and were subtracted when they were sent.
        split.unclaimed = min(split.unclaimed, unclaimed)
        if not split.unclaimed or expected / split.units < WORTH_SECONDS:
            split.unclaimed = 0

    def next(self, barred: Callable[[Owner], bool], now: float) -> tuple[int, int] | None:
        """The job to assist now, and its forkserver; an assistant counts as running from here on."""
        waiting = [(s.left, -job) for job, s in self._jobs.items() if s.unclaimed and not barred(s.owner)]
        if not waiting:
            return None
        job = -max(waiting)[1]
        split = self._jobs[job]
        split.unclaimed -= 1
        self._running.setdefault((job, split.forkserver), deque()).append(Assistant(split.owner, now))
        self.holding[split.owner] += 1
        self._count += 1
        return job, split.forkserver

    def ended(self, job: int, forkserver: int) -> Assistant | None:
        """An assistant of this job has ended; None: it was lost with its forkserver before."""
        running = self._running.get((job, forkserver))
        if running is None:
            return None
        assistant = running.popleft()
        self.holding[assistant.owner] -= 1
        self._count -= 1
        if not running:
            del self._running[job, forkserver]
        return assistant

    def forget(self, job: int) -> list[int]:
        """The job is over; its assistants run until they are said to have ended: forkservers that have some."""
        self._jobs.pop(job, None)
        return [forkserver for assisted, forkserver in self._running if assisted == job]

    def lingering(self, forkserver: int, jobs: Callable[[int], bool]) -> bool:
        """Whether one of its assistants goes on whose job (not in `jobs`) is over."""
        return any(of == forkserver and not jobs(job) for job, of in self._running)

    def lost(self, forkserver: int) -> Iterator[Assistant]:
        """With a forkserver go its workers."""
        for job, of in list(self._running):
            while of == forkserver and (assistant := self.ended(job, of)):
                yield assistant
