"""Which running jobs get more workers, when slots are free and nothing is queued.

A job compiles its kernel's configs one after the other. Splitting every kernel costs 7 to 10 % CPU; not splitting any
lets one kernel of twenty configs hold up thirty others. So a job is split only while slots would stay empty: an
assistant takes configs until none is left that nobody has taken. The job with the most left to do is assisted first.
"""

from collections import Counter
from dataclasses import dataclass

# A config that is known to take less is not worth a process: a worker costs 30 to 40 ms of CPU.
WORTH_SECONDS = 0.05


@dataclass(slots=True)
class _Split:
    """A running job of several configs."""

    expected: float
    forkserver: int
    units: int
    unclaimed: int

    @property
    def left(self) -> float:
        """Expected CPU seconds of what nobody has taken."""
        return self.expected * self.unclaimed / self.units


class Assistance:
    """Jobs that may be assisted, and the assistants that run."""

    def __init__(self) -> None:
        self._jobs: dict[int, _Split] = {}
        self._running: Counter[tuple[int, int]] = Counter()

    def __len__(self) -> int:
        return self._running.total()

    def progress(self, job: int, forkserver: int, expected: float, unclaimed: int) -> None:
        """So many of the job's configs are taken by nobody; the first time, all but the one that its worker took."""
        split = self._jobs.get(job)
        if split is None:
            split = self._jobs[job] = _Split(expected, forkserver, unclaimed + 1, unclaimed)
        # Assistants on their way have not taken theirs yet, and were subtracted when they were sent.
        split.unclaimed = min(split.unclaimed, unclaimed)
        if not split.unclaimed or expected / split.units < WORTH_SECONDS:
            split.unclaimed = 0

    def next(self) -> tuple[int, int] | None:
        """The job to assist now, and its forkserver; an assistant counts as running from here on."""
        waiting = [(split.left, -job) for job, split in self._jobs.items() if split.unclaimed]
        if not waiting:
            return None
        job = -max(waiting)[1]
        split = self._jobs[job]
        split.unclaimed -= 1
        self._running[job, split.forkserver] += 1
        return job, split.forkserver

    def ended(self, job: int, forkserver: int) -> None:
        """An assistant of this job has ended; one that is unknown was lost with its forkserver before."""
        if self._running[job, forkserver]:
            self._running[job, forkserver] -= 1
        if not self._running[job, forkserver]:
            del self._running[job, forkserver]

    def forget(self, job: int) -> None:
        """The job is over; its assistants run until they are said to have ended."""
        self._jobs.pop(job, None)

    def lost(self, forkserver: int) -> None:
        """With a forkserver go its workers."""
        for of_job in [key for key in self._running if key[1] == forkserver]:
            del self._running[of_job]
