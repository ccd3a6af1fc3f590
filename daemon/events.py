"""What happens to the pool: the scheduler's input. Who may cause what is in `scheduler`'s docstring."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from compilepool.daemon.owner import Owner
from compilepool.protocol.errors import Failure
from compilepool.protocol.messages import Priority

# Tuples where others are dataclasses: these are looked up many times in each decision.


class RequestId(NamedTuple):
    """A request: the client's number in this daemon, and the id that the client chose."""

    client: int
    id: int


class Domain(NamedTuple):
    """Who may share a forkserver and its results."""

    owner: Owner
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Submitted:
    """A client asks for the kernel behind `key`, which is expected to take `expected` CPU seconds.

    size: bytes that it holds in the daemon
    timeout: seconds that it may run; None: as long as the daemon allows
    wider: key of the same kernel with all its configs, whose result will do as well ('': there is none)
    probe: only asks whether its domain's forkserver is ready, and is answered by that
    behalf: asked by the worker of this running job, which waits for it: it runs in that one's slot
    """

    request: RequestId
    domain: Domain
    key: str
    kernel: str
    priority: Priority
    expected: float
    size: int = 0
    timeout: float | None = None
    wider: str = ""
    probe: bool = False
    behalf: int | None = None


@dataclass(frozen=True, slots=True)
class Allowances:
    """How many slots each owner may hold at once: all (None), or so many; by uid where it differs."""

    slots: int | None = None
    of_uid: Mapping[int, int | None] = field(default_factory=dict)

    def of(self, owner: Owner) -> float:
        """The most that this owner may hold."""
        slots = self.of_uid.get(owner.uid, self.slots)
        return float("inf") if slots is None else slots


@dataclass(frozen=True, slots=True)
class Promoted:
    """A client is blocked on a request that it had asked for in the background."""

    request: RequestId


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A client no longer wants an answer."""

    request: RequestId


@dataclass(frozen=True, slots=True)
class ClientGone:
    """A client disconnected."""

    client: int


@dataclass(frozen=True, slots=True)
class LookedUp:
    """The store's answer."""

    job: int
    found: bool


@dataclass(frozen=True, slots=True)
class StartFailed:
    """A client could not start the forkserver that it was asked for."""

    client: int
    reason: str


@dataclass(frozen=True, slots=True)
class Attached:
    """A forkserver connected; it is still importing."""

    forkserver: int
    domain: Domain


@dataclass(frozen=True, slots=True)
class Ready:
    """A forkserver can fork workers."""

    forkserver: int


@dataclass(frozen=True, slots=True)
class ForkserverGone:
    """A forkserver disconnected, or said (`told`) that it can't serve."""

    forkserver: int
    reason: str
    told: bool = False


@dataclass(frozen=True, slots=True)
class Heard:
    """A forkserver answered that it is there."""

    forkserver: int


@dataclass(frozen=True, slots=True)
class Memory:
    """The host has memory for so many more workers than hold a slot now; negative: for fewer."""

    room: int


@dataclass(frozen=True, slots=True)
class Progress:
    """So many configs of a running job are taken by no worker."""

    job: int
    unclaimed: int


@dataclass(frozen=True, slots=True)
class Assisted:
    """A worker that this forkserver let assist a job has ended."""

    job: int
    forkserver: int


@dataclass(frozen=True, slots=True)
class Succeeded:
    """A worker answered with this many compiled units."""

    job: int
    units: int


@dataclass(frozen=True, slots=True)
class JobFailed:
    """A worker failed or died."""

    job: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class Drain:
    """Start nothing more; with `now`, give up what runs."""

    now: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: `deadline()` was reached."""


Event = (
    Submitted
    | Allowances
    | Promoted
    | Cancelled
    | ClientGone
    | LookedUp
    | StartFailed
    | Attached
    | Ready
    | ForkserverGone
    | Heard
    | Memory
    | Progress
    | Assisted
    | Succeeded
    | JobFailed
    | Drain
    | Tick
)
