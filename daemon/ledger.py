"""What is open, and how it ends: jobs, requests, the actions that come of a decision, and the counts of outcomes.

Every request that is answered, and every job that changes its phase, goes through here; who decides is `scheduler`, and
`forkservers` for what becomes of jobs when a forkserver comes, goes or does not obey.
"""

from collections import Counter

from compilepool.daemon import actions as act
from compilepool.daemon.assistance import Assistance
from compilepool.daemon.deadlines import Deadlines
from compilepool.daemon.events import RequestId
from compilepool.daemon.jobs import Job, Jobs, Phase
from compilepool.daemon.requests import Requests
from compilepool.daemon.supervision import Supervision
from compilepool.protocol.errors import Failure
from compilepool.protocol.messages import Origin


class Ledger:
    """See the module's docstring; `actions` are those of the event that is being handled."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        self.actions: list[act.Action] = []
        self.draining = False
        self.jobs = Jobs()
        self.requests = Requests()
        self.deadlines: Deadlines[object] = Deadlines()
        self.supervision = Supervision(self.deadlines)
        self.assistance = Assistance()

    @property
    def running(self) -> int:
        """Slots that are held, by jobs and by what assists them."""
        return self.jobs.holding + len(self.assistance)

    def answer(self, job: Job, origin: Origin) -> None:
        """Everybody who waits for the job gets its result."""
        for request in list(job.waiters):
            self.requests.release(request)
            self.actions.append(act.Answer(request, job.number, origin))
            self.counters["probes" if job.probe else f"answered_{origin}"] += 1
            if origin == "compiled":
                origin = "joined"
        self.move(job, Phase.GONE)

    def fail_job(self, job: Job, failure: Failure) -> None:
        """Everybody who waits for the job is told this."""
        for request in list(job.waiters):
            self.requests.release(request)
            self.fail(request, failure)
        self.move(job, Phase.GONE)

    def fail(self, request: RequestId, failure: Failure) -> None:
        """One request is told this."""
        self.counters[f"failed_{failure.kind}"] += 1
        self.actions.append(act.Fail(request, failure))

    def move(self, job: Job, phase: Phase) -> None:
        """The job goes on to this phase."""
        self.jobs.move(job, phase)
        if phase is not Phase.RUNNING:
            self.assistance.forget(job.number)
            self.supervision.ended(job.number)
        if phase is Phase.GONE:
            self.actions.append(act.Forget(job.number))
