"""Whether forkservers obey: while they have work they answer, stop a job at its limit, and kill what nobody wants.

    asked for a word every PING_SECONDS --> no answer in OBEY_SECONDS ------.
    a job at its time limit --> not over OBEY_SECONDS later ----------------+--> the forkserver is given up
    told to kill a job --> not over OBEY_SECONDS later ---------------------+--> the forkserver is given up
    a job over --> its assistants are not OBEY_SECONDS later ---------------'

A forkserver without work is not asked: nothing wakes on an idle host.
"""

from dataclasses import dataclass

from compilepool.daemon.deadlines import Deadlines

PING_SECONDS = 10.0
# Telling a worker to end, killing it, and a loaded host; the forkserver takes 2 s for it.
OBEY_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Unheard:
    """This forkserver is to say something."""

    forkserver: int


@dataclass(frozen=True, slots=True)
class Overdue:
    """This job is to be over."""

    job: int


@dataclass(frozen=True, slots=True)
class Lingering:
    """Assistants of this forkserver's are to be over, their jobs are."""

    forkserver: int


class Supervision:
    """Sets the deadlines; whoever takes them as due asks here what that means."""

    def __init__(self, deadlines: Deadlines[object]) -> None:
        self._deadlines = deadlines
        self._pinged: set[int] = set()

    def began(self, job: int, seconds: float, forkserver: int, now: float) -> None:
        """A forkserver was given a job that may run so long."""
        self._deadlines.set(Overdue(job), now + seconds + OBEY_SECONDS)
        if Unheard(forkserver) not in self._deadlines:
            self._deadlines.set(Unheard(forkserver), now + PING_SECONDS)

    def told_to_kill(self, job: int, now: float) -> None:
        """A forkserver was told to kill a job."""
        self._deadlines.set(Overdue(job), now + OBEY_SECONDS)

    def ended(self, job: int) -> None:
        """A job is over, or its forkserver is."""
        self._deadlines.clear(Overdue(job))

    def lingers(self, forkserver: int, now: float) -> None:
        """A job is over, and this forkserver's assistants of it are not yet."""
        if Lingering(forkserver) not in self._deadlines:
            self._deadlines.set(Lingering(forkserver), now + OBEY_SECONDS)

    def heard(self, forkserver: int, now: float) -> None:
        """It has answered."""
        if forkserver in self._pinged:
            self._pinged.discard(forkserver)
            self._deadlines.set(Unheard(forkserver), now + PING_SECONDS)

    def silent(self, forkserver: int, now: float) -> bool:
        """It was to be asked, or to answer: whether it was asked before. Otherwise it is to be asked now."""
        if forkserver in self._pinged:
            return True
        self._pinged.add(forkserver)
        self._deadlines.set(Unheard(forkserver), now + OBEY_SECONDS)
        return False

    def rests(self, forkserver: int) -> None:
        """It has no work, and is not asked."""
        self._pinged.discard(forkserver)
        self._deadlines.clear(Unheard(forkserver))

    def gone(self, forkserver: int) -> None:
        """It is not there any more."""
        self.rests(forkserver)
        self._deadlines.clear(Lingering(forkserver))
