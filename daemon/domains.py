"""Who serves a domain: its forkserver, the client that was asked to start one, and how long either may take.

    nobody --ask--> asked --attached--> attached --ready--> ready
      ^               |                     |                 |
      |               |                     '-- it died: its starter is waited for, who says why
      '---- failed, late, client gone ------'------ gone -----'

One client of a domain at a time is asked to start its forkserver. One that fails, or takes longer than `START_SECONDS`
to attach or `WARM_SECONDS` to be ready, is followed by the next client that has not been tried. When none is left, or
when one that was ready did not live for `STABLE_SECONDS`, that is a failure of the domain: after the first in a row the
next one is asked for at once, after more of them with pauses that double up to `LONGEST_PAUSE`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from compilepool.daemon.deadlines import Deadlines
from compilepool.daemon.events import Domain

# A forkserver attaches before its imports: an interpreter's start, tens of milliseconds, with room for a loaded host.
START_SECONDS = 30.0
# Importing torch takes 4 to 10 s, and minutes from a cold network filesystem.
WARM_SECONDS = 300.0
STABLE_SECONDS = 60.0
LONGEST_PAUSE = 60.0
# A host has a few toolchains for each user; a fingerprint is whatever a client says.
REMEMBERED = 10_000


@dataclass(slots=True)
class DomainState:
    """A domain's forkserver, or the attempt to get one; how the attempts went.

    since: when it was ready
    not_before: when the next one may be asked for; `reason`: what went wrong with the last
    """

    forkserver: int | None = None
    ready: bool = False
    since: float = 0.0
    asked: int | None = None
    tried: set[int] = field(default_factory=set)
    failures: int = 0
    not_before: float = 0.0
    reason: str = ""

    @property
    def unserved(self) -> bool:
        """Whether there is no forkserver, nor anybody who starts one."""
        return self.forkserver is None and self.asked is None

    def failed(self, reason: str, now: float) -> None:
        """An attempt was the last, or what it brought did not last."""
        self.failures += 1
        self.reason = reason
        self.not_before = now + min(LONGEST_PAUSE, 2.0 ** (self.failures - 1)) if self.failures > 1 else now


class Domains:
    """All domains that had jobs or a forkserver; `deadlines` tells when one is late."""

    def __init__(self, deadlines: Deadlines[object]) -> None:
        self._deadlines = deadlines
        self._states: dict[Domain, DomainState] = {}
        self._of_forkserver: dict[int, Domain] = {}
        self._of_asked: dict[int, set[Domain]] = {}

    def __len__(self) -> int:
        return len(self._of_forkserver)

    def of(self, domain: Domain) -> DomainState:
        """The domain's state, new if need be; of very many, those that are not served are forgotten."""
        if domain not in self._states and len(self._states) >= REMEMBERED:
            idle = [known for known, state in self._states.items() if state.unserved]
            for known in idle[: REMEMBERED // 10]:
                del self._states[known]
        return self._states.setdefault(domain, DomainState())

    def served_by(self, forkserver: int) -> Domain | None:
        """The domain of an attached forkserver."""
        return self._of_forkserver.get(forkserver)

    def asked(self, client: int) -> Iterator[Domain]:
        """The domains for which this client was asked to start a forkserver that is not ready."""
        yield from list(self._of_asked.get(client, ()))

    def attach(self, forkserver: int, domain: Domain, now: float) -> None:
        """The domain's forkserver has come; it is still importing."""
        state = self.of(domain)
        self._of_forkserver[forkserver] = domain
        state.forkserver, state.ready = forkserver, False
        self._deadlines.set(domain, now + WARM_SECONDS)

    def ready(self, forkserver: int, now: float) -> Domain | None:
        """It can fork workers; None if it was given up meanwhile."""
        domain = self._of_forkserver.get(forkserver)
        if domain is None:
            return None
        state = self._states[domain]
        state.ready, state.since = True, now
        state.tried.clear()
        self._ask_nobody(domain)
        return domain

    def gone(self, forkserver: int, reason: str, now: float) -> Domain | None:
        """It has left, for this reason ('': for none of its own); None if it was given up before."""
        domain = self._of_forkserver.pop(forkserver, None)
        if domain is not None:
            state = self._states[domain]
            if state.ready and reason and now - state.since < STABLE_SECONDS:
                state.failed(reason, now)
            elif state.ready:
                state.failures = 0
            state.forkserver, state.ready = None, False
            self._deadlines.clear(domain)
        return domain

    def await_starter(self, domain: Domain, now: float) -> bool:
        """Whether whoever started it is there, to say in a moment why it died."""
        if self._states[domain].asked is None:
            return False
        self._deadlines.set(domain, now + START_SECONDS)
        return True

    def ask(self, domain: Domain, clients: Iterable[int], now: float) -> int | None:
        """Whom of these clients to ask: the first that was not tried; None if there is none, or it is too early."""
        self._ask_nobody(domain)
        state = self._states[domain]
        if now < state.not_before:
            return None
        client = next((c for c in clients if c not in state.tried), None)
        if client is not None:
            state.tried.add(client)
            state.asked = client
            self._of_asked.setdefault(client, set()).add(domain)
            self._deadlines.set(domain, now + START_SECONDS)
        return client

    def give_up(self, domain: Domain, reason: str, now: float) -> None:
        """Nobody is left to ask: the next who wants a forkserver starts afresh, after a pause if that goes on."""
        state = self._states[domain]
        if now >= state.not_before and state.tried:
            state.failed(reason, now)
        state.tried.clear()

    def _ask_nobody(self, domain: Domain) -> None:
        state = self._states[domain]
        if state.asked is not None:
            mine = self._of_asked[state.asked]
            mine.discard(domain)
            if not mine:
                del self._of_asked[state.asked]
            state.asked = None
        self._deadlines.clear(domain)
