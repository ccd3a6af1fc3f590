"""A job and its phases, as a table; `scheduler`'s docstring draws them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from compilepool.daemon.events import Domain, RequestId
from compilepool.daemon.fairqueue import Place
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
    Phase.RUNNING: frozenset({Phase.WAITING, Phase.KILLING, Phase.GONE}),
    Phase.KILLING: frozenset({Phase.GONE}),
    Phase.GONE: frozenset(),
}
HOLDS_SLOT = (Phase.RUNNING, Phase.KILLING)


@dataclass(slots=True)
class Job:
    """What the scheduler knows of one job; `waiters` are its requests, the one that caused it first."""

    number: int
    key: str
    kernel: str
    domain: Domain
    expected: float
    probe: bool = False
    phase: Phase = Phase.LOOKUP
    waiters: dict[RequestId, Priority] = field(default_factory=dict)
    lost: int = 0


def place_of(job: Job) -> Place:
    """The job's place: as urgent as its most urgent waiter, on the turn of the first such one."""
    urgent = [r for r, priority in job.waiters.items() if priority == "foreground"]
    first = urgent[0] if urgent else next(iter(job.waiters))
    return Place("foreground" if urgent else "background", job.domain.uid, first.client, job.expected)


def clients_of(jobs: Iterable[Job]) -> Iterable[int]:
    """The clients that wait for these jobs, in the order of their requests."""
    return (request.client for job in jobs for request in job.waiters)


def stopping(kernel: str) -> Failure:
    """What a request is told that a draining daemon hands back."""
    return Failure("unavailable", "the daemon is stopping", kernel)
