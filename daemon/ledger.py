"""What is open, and how it ends: jobs, requests, the actions that come of a decision, and the counts of outcomes.

Every request that is answered, and every job that changes its phase, goes through here, and every second of a slot is
charged to whose it is; who decides is `scheduler`, and `forkservers` for what becomes of jobs when a forkserver comes,
goes or does not obey.
"""

from collections import Counter, defaultdict

from compilepool.daemon import actions as act
from compilepool.daemon.assistance import Assistance, Assistant
from compilepool.daemon.deadlines import Deadlines
from compilepool.daemon.events import RequestId
from compilepool.daemon.jobs import HOLDS_SLOT, Job, Jobs, Phase
from compilepool.daemon.owner import Owner
from compilepool.daemon.requests import Requests
from compilepool.daemon.supervision import Supervision
from compilepool.protocol.errors import Failure
from compilepool.protocol.messages import Origin


class Ledger:
    """See the module's docstring; `now` and `actions` are those of the event that is being handled."""

    def __init__(self) -> None:
        self.now = 0.0
        self._counters: dict[Owner, Counter[str]] = {}
        self._slot_seconds: defaultdict[Owner, float] = defaultdict(float)
        self.actions: list[act.Action] = []
        self.orphaned: list[RequestId] = []
        self.draining = False
        self.jobs = Jobs()
        self.requests = Requests()
        self.deadlines: Deadlines[object] = Deadlines()
        self.supervision = Supervision(self.deadlines)
        self.assistance = Assistance()

    @property
    def running(self) -> int:
        """Slots that are held, by jobs and by what assists them."""
        return self.jobs.held_slots + len(self.assistance)

    def held_by(self, owner: Owner) -> int:
        """The slots that are held for one."""
        return self.jobs.holding[owner] + self.assistance.holding[owner]

    def count(self, owner: Owner, name: str, times: int = 1) -> None:
        """So often has this happened to the owner."""
        self._counters.setdefault(owner, Counter())[name] += times

    def counters(self, owner: Owner | None) -> Counter[str]:
        """How often what has happened: to one owner, or in all."""
        if owner is not None:
            return self._counters.get(owner, Counter())
        return sum(self._counters.values(), Counter())

    def slot_seconds(self, owner: Owner | None) -> float:
        """How long slots were held: for one owner, or in all."""
        return sum(self._slot_seconds.values()) if owner is None else self._slot_seconds.get(owner, 0.0)

    def owners(self) -> list[Owner]:
        """Whoever asked for anything."""
        return sorted(self._counters)

    def answer(self, job: Job, origin: Origin) -> None:
        """Everybody who waits for the job gets its result."""
        for request in list(job.waiters):
            self.requests.release(request)
            self.actions.append(act.Answer(request, job.number, origin))
            self.count(job.domain.owner, "probes" if job.probe else f"answered_{origin}")
            if origin == "compiled":
                origin = "joined"
        self.move(job, Phase.GONE)

    def fail_job(self, job: Job, failure: Failure) -> None:
        """Everybody who waits for the job is told this."""
        for request in list(job.waiters):
            self.requests.release(request)
            self.fail(request, job.domain.owner, failure)
        self.move(job, Phase.GONE)

    def fail(self, request: RequestId, owner: Owner, failure: Failure) -> None:
        """One request is told this."""
        self.count(owner, f"failed_{failure.kind}")
        self.actions.append(act.Fail(request, failure))

    def move(self, job: Job, phase: Phase) -> None:
        """The job goes on to this phase."""
        held = job.phase in HOLDS_SLOT
        self.jobs.move(job, phase)
        if held and phase not in HOLDS_SLOT and not job.loan:
            self._held(job.domain.owner, self.now - job.began, job.charged)
        if phase is not Phase.RUNNING:
            # What its workers have asked nobody waits for; those that assist are to end.
            self.orphaned += self.requests.asked_by(job.number)
            for forkserver in self.assistance.forget(job.number):
                self.supervision.lingers(forkserver, self.now)
            self.supervision.ended(job.number)
        if phase is Phase.GONE:
            self.actions.append(act.Forget(job.number))

    def assistant_ended(self, assistant: Assistant) -> None:
        """It holds its slot no more."""
        self._held(assistant.owner, self.now - assistant.began, 0.0)

    def _held(self, owner: Owner, seconds: float, charged: float) -> None:
        self._slot_seconds[owner] += seconds
        self.jobs.queue.charge(owner, seconds - charged)
