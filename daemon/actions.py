"""What the scheduler wants done: its output, performed by the engine in the order given."""

from dataclasses import dataclass

from compilepool.daemon.events import RequestId
from compilepool.protocol.errors import Failure
from compilepool.protocol.messages import Origin


@dataclass(frozen=True, slots=True)
class LookUp:
    """A new job, caused by this request: ask the store for its keys, and say `LookedUp`."""

    job: int
    request: RequestId


@dataclass(frozen=True, slots=True)
class Run:
    """Let this forkserver run this job, for at most so many seconds."""

    job: int
    forkserver: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Assist:
    """Let this forkserver put another worker to this job."""

    job: int
    forkserver: int


@dataclass(frozen=True, slots=True)
class Kill:
    """Tell this forkserver that nobody wants this job any more."""

    job: int
    forkserver: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Send the job's contents to this request."""

    request: RequestId
    job: int
    origin: Origin


@dataclass(frozen=True, slots=True)
class Fail:
    """Send this failure to this request."""

    request: RequestId
    failure: Failure


@dataclass(frozen=True, slots=True)
class AskForForkserver:
    """Ask this client to start its domain's forkserver."""

    client: int


@dataclass(frozen=True, slots=True)
class Adopt:
    """Tell this forkserver that it is its domain's."""

    forkserver: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Ask this forkserver for a word."""

    forkserver: int


@dataclass(frozen=True, slots=True)
class Retire:
    """Tell this forkserver to exit."""

    forkserver: int
    reason: str


@dataclass(frozen=True, slots=True)
class Forget:
    """The job is gone: drop what is kept for it."""

    job: int


Action = LookUp | Run | Assist | Kill | Answer | Fail | AskForForkserver | Adopt | Ping | Retire | Forget
