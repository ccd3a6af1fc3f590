"""A job and its phases, as a table, and all the jobs that there are; `scheduler`'s docstring draws the phases."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from compilepool.daemon.events import Domain, RequestId
from compilepool.daemon.fairqueue import FairQueue, Place
from compilepool.daemon.owner import Owner
from compilepool.protocol.errors import Failure
from compilepool.protocol.messages import Priority

RETRIES = 1


class SchedulerError(Exception):
    """The scheduler was driven, or went, where its rules do not allow: a bug in the daemon."""


class Phase(Enum):
    """Where a job stands; see `scheduler`."""

    LOOKUP = "lookup"
    WAITING = "waiting"
    QUEUED = "queued"
    RUNNING = "running"
    KILLING = "killing"
    GONE = "gone"


TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.LOOKUP: frozenset({Phase.WAITING, Phase.QUEUED, Phase.GONE}),
    Phase.WAITING: frozenset({Phase.QUEUED, Phase.GONE}),
    Phase.QUEUED: frozenset({Phase.WAITING, Phase.RUNNING, Phase.GONE}),
    Phase.RUNNING: frozenset({Phase.WAITING, Phase.QUEUED, Phase.KILLING, Phase.GONE}),
    Phase.KILLING: frozenset({Phase.GONE}),
    Phase.GONE: frozenset(),
}
HOLDS_SLOT = (Phase.RUNNING, Phase.KILLING)


@dataclass(slots=True)
class Job:
    """What the scheduler knows of one job; `waiters` are its requests, the one that caused it first.

    expected: CPU seconds that it will take
    seconds: how long it was let run: as long as the most patient of its waiters allowed then
    patience: how long each of its waiters allows
    lost: how often its forkserver was lost while it ran
    loan: it is a part of other jobs' work and runs in the slot of the one that caused it: it holds none of its own
    asker: the client (a forkserver) that caused a loan
    began, charged: when it got its slot, and the seconds of it that its owner was charged for then
    """

    number: int
    key: str
    kernel: str
    domain: Domain
    expected: float
    seconds: float = 0.0
    probe: bool = False
    phase: Phase = Phase.LOOKUP
    waiters: dict[RequestId, Priority] = field(default_factory=dict)
    patience: dict[RequestId, float] = field(default_factory=dict)
    lost: int = 0
    loan: bool = False
    asker: int = 0
    began: float = 0.0
    charged: float = 0.0


class Jobs:
    """Every job by number and by key; the queue, the slots and each domain's list follow a job's phase."""

    def __init__(self) -> None:
        self.queue = FairQueue()
        self.loans: dict[int, None] = {}
        self.held_slots = 0
        self.holding: Counter[Owner] = Counter()
        # Loans that nobody wants any more and that still run, by who caused them.
        self.unwanted: Counter[int] = Counter()
        self._holding_of: Counter[Domain] = Counter()
        self._jobs: dict[int, Job] = {}
        self._by_key: dict[tuple[Domain, str], Job] = {}
        self._of_domain: dict[Domain, dict[int, Job]] = {}
        self._counts: Counter[tuple[Owner, Phase]] = Counter()

    def __len__(self) -> int:
        return len(self._jobs)

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {phase.value}" for phase in Phase if (count := self.count(phase)))
        return counts or "none"

    def __iter__(self) -> Iterator[Job]:
        return iter(list(self._jobs.values()))

    def count(self, phase: Phase, owner: Owner | None = None) -> int:
        """How many are in this phase: of one owner, or of all."""
        if owner is not None:
            return self._counts[owner, phase]
        return sum(count for (_, counted), count in self._counts.items() if counted is phase)

    def __getitem__(self, number: int) -> Job:
        return self._jobs[number]

    def get(self, number: int) -> Job | None:
        """The job with this number, while there is one."""
        return self._jobs.get(number)

    def with_key(self, domain: Domain, *keys: str) -> Job | None:
        """The job that answers whoever asks for one of these keys."""
        return next(filter(None, (self._by_key.get((domain, key)) for key in keys)), None)

    def of(self, domain: Domain, *phases: Phase) -> list[Job]:
        """The domain's jobs that are in one of these phases."""
        return [job for job in self._of_domain.get(domain, {}).values() if job.phase in phases]

    def holds(self, domain: Domain) -> bool:
        """Whether a job of the domain holds a slot."""
        return self._holding_of[domain] > 0

    def held(self, number: int) -> Job:
        """The job with this number, which holds a slot."""
        job = self._jobs.get(number)
        if job is None or job.phase not in HOLDS_SLOT:
            raise SchedulerError(f"job {number} is not running")
        return job

    def add(self, job: Job) -> None:
        """A new job."""
        self._jobs[job.number] = self._by_key[job.domain, job.key] = job
        self._of_domain.setdefault(job.domain, {})[job.number] = job
        self._counts[job.domain.owner, job.phase] += 1

    def move(self, job: Job, phase: Phase) -> None:
        """The only place where a phase changes."""
        if phase not in TRANSITIONS[job.phase]:
            raise SchedulerError(f"job {job.number} ({job.kernel}) can't go from {job.phase.value} to {phase.value}")
        taken = (phase in HOLDS_SLOT) - (job.phase in HOLDS_SLOT)
        if taken:
            if not job.loan:
                self.held_slots += taken
                self.holding[job.domain.owner] += taken
            self._holding_of[job.domain] += taken
        if job.loan and Phase.KILLING in (phase, job.phase):
            self.unwanted[job.asker] += 1 if phase is Phase.KILLING else -1
            self.unwanted = +self.unwanted
        self._counts[job.domain.owner, job.phase] -= 1
        self._counts[job.domain.owner, phase] += phase is not Phase.GONE
        job.phase = phase
        self.place(job)
        if phase in (Phase.KILLING, Phase.GONE) and self._by_key.get((job.domain, job.key)) is job:
            del self._by_key[job.domain, job.key]
        if phase is Phase.GONE:
            self._remove(job)

    def place(self, job: Job) -> None:
        """Queue a job that is to be queued, where its waiters put it; another is not in the queue."""
        if job.loan:
            if job.phase is Phase.QUEUED:
                self.loans[job.number] = None
            else:
                self.loans.pop(job.number, None)
        elif job.phase is Phase.QUEUED:
            self.queue.push(job.number, place_of(job))
        else:
            self.queue.remove(job.number)

    def _remove(self, job: Job) -> None:
        del self._jobs[job.number]
        mine = self._of_domain[job.domain]
        del mine[job.number]
        if not mine:
            del self._of_domain[job.domain], self._holding_of[job.domain]

    def check_invariants(self) -> None:
        """Raise AssertionError if the indexes contradict the jobs."""
        held = [job for job in self if job.phase in HOLDS_SLOT]
        assert self.held_slots == self.holding.total()
        assert +self.holding == Counter(job.domain.owner for job in held if not job.loan), f"{self.holding} are counted"
        assert +self._holding_of == Counter(job.domain for job in held)
        assert +self._counts == Counter((job.domain.owner, job.phase) for job in self), f"{self._counts} are counted"
        assert sum(map(len, self._of_domain.values())) == len(self._jobs)
        for job in self:
            queue = self.loans if job.loan else self.queue
            assert (job.number in queue) == (job.phase is Phase.QUEUED), f"{job} is misplaced"
            assert bool(job.waiters) == (job.phase is not Phase.KILLING), f"{job} has the wrong waiters"


def place_of(job: Job) -> Place:
    """The job's place: as urgent as its most urgent waiter, on the turn of the first such one."""
    urgent = next((r for r, priority in job.waiters.items() if priority == "foreground"), None)
    first = urgent or next(iter(job.waiters))
    return Place("foreground" if urgent else "background", job.domain.owner, first.client, job.expected)


def clients_of(jobs: Iterable[Job]) -> Iterable[int]:
    """The clients that wait for these jobs, in the order of their requests; who asks for a loan starts nothing."""
    return (request.client for job in jobs if not job.loan for request in job.waiters)


def stopping(kernel: str) -> Failure:
    """What a request is told that a draining daemon hands back."""
    return Failure("unavailable", "the daemon is stopping", kernel)
