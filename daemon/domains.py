"""Who serves a domain: its forkserver, the client that was asked to start one, and how long either may take.

    nobody --ask--> asked --attached--> attached --ready--> ready
      ^               |                     |                 |
      '---- failed, late, client gone ------'------ gone -----'

One client of a domain at a time is asked to start its forkserver. One that fails, or takes longer than `START_SECONDS`
to attach or `WARM_SECONDS` to be ready, is followed by the next client that has not been tried.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from compilepool.daemon.events import Domain

# A forkserver attaches before its imports: an interpreter's start, tens of milliseconds, with room for a loaded host.
START_SECONDS = 30.0
# Importing torch takes 4 to 10 s, and minutes from a cold network filesystem.
WARM_SECONDS = 300.0


@dataclass(slots=True)
class DomainState:
    """A domain's forkserver, or the attempt to get one, and the jobs that need it."""

    forkserver: int | None = None
    ready: bool = False
    asked: int | None = None
    tried: set[int] = field(default_factory=set)
    deadline: float | None = None
    jobs: dict[int, None] = field(default_factory=dict)

    @property
    def unserved(self) -> bool:
        """Whether there is no forkserver, nor anybody who starts one."""
        return self.forkserver is None and self.asked is None


class Domains:
    """All domains that have jobs or a forkserver."""

    def __init__(self) -> None:
        self._states: dict[Domain, DomainState] = {}
        self._of_forkserver: dict[int, Domain] = {}

    def __len__(self) -> int:
        return len(self._of_forkserver)

    def of(self, domain: Domain) -> DomainState:
        """The domain's state, new if need be."""
        return self._states.setdefault(domain, DomainState())

    def known(self, domain: Domain) -> DomainState | None:
        """The domain's state, if it has one."""
        return self._states.get(domain)

    def served_by(self, forkserver: int) -> Domain | None:
        """The domain of an attached forkserver."""
        return self._of_forkserver.get(forkserver)

    def asked(self, client: int) -> Iterator[Domain]:
        """The domains for which this client was asked to start a forkserver that has not come."""
        for domain, state in list(self._states.items()):
            if state.asked == client and state.forkserver is None:
                yield domain

    def attach(self, forkserver: int, domain: Domain, now: float) -> None:
        """The domain's forkserver has come; it is still importing."""
        state = self.of(domain)
        self._of_forkserver[forkserver] = domain
        state.forkserver, state.ready, state.deadline = forkserver, False, now + WARM_SECONDS

    def ready(self, forkserver: int) -> DomainState | None:
        """It can fork workers; None if it was given up meanwhile."""
        domain = self._of_forkserver.get(forkserver)
        if domain is None:
            return None
        state = self._states[domain]
        state.ready, state.asked, state.deadline = True, None, None
        state.tried.clear()
        return state

    def gone(self, forkserver: int) -> Domain | None:
        """It has left; None if it was given up before."""
        domain = self._of_forkserver.pop(forkserver, None)
        if domain is not None:
            state = self._states[domain]
            state.forkserver, state.ready, state.deadline = None, False, None
        return domain

    def ask(self, domain: Domain, clients: Iterable[int], now: float) -> int | None:
        """Whom of these clients to ask: the first that was not tried; None, and all may be tried again later."""
        state = self._states[domain]
        state.asked = state.deadline = None
        client = next((c for c in clients if c not in state.tried), None)
        if client is not None:
            state.tried.add(client)
            state.asked, state.deadline = client, now + START_SECONDS
        return client

    def give_up(self, domain: Domain) -> None:
        """Nobody is left to ask: the next who wants a forkserver starts afresh."""
        if self._states[domain].jobs:
            self._states[domain].tried.clear()
        else:
            del self._states[domain]

    def deadline(self) -> float | None:
        """When the next one is late."""
        return min((s.deadline for s in self._states.values() if s.deadline is not None), default=None)

    def late(self, now: float) -> list[tuple[Domain, DomainState]]:
        """Those whose forkserver should have been there, or ready."""
        return [(d, s) for d, s in self._states.items() if s.deadline is not None and now >= s.deadline]
