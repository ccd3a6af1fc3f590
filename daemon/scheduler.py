"""The decisions of the pool, without IO: `actions = scheduler.handle(event, now)`.

A *request* is one client's wish for one kernel. Requests with the same key share one *job*: one worker's work, all the
units (configs) of one kernel. A job belongs to a *domain*, one (uid, toolchain), and only that domain's forkserver may
run it. A job's life:

                        .------------------- forkserver lost, once --------------------.
                        v                                                              |
    LOOKUP --missed--> WAITING --forkserver ready--> QUEUED --slot free--> RUNNING ----'
       |                  |    <--forkserver lost---   |                     |  '--last waiter left--> KILLING
       |                  |                            |                     |                            |
       '---- found -------'-- last waiter left, given up, draining ----------'--------- ended ------------'--> (gone)

LOOKUP    the store is being asked for the key
WAITING   the domain has no ready forkserver; one of its clients was asked to start one
QUEUED    in the fair queue
RUNNING   a worker compiles it; it holds a slot (and goes back to QUEUED when somebody allows it more time)
KILLING   nobody wants it any more and the forkserver was told so; it holds its slot until the worker is gone

A *probe* only asks for its domain's forkserver: its job goes from WAITING to gone when one is ready.
Rules:
- Every request is answered exactly once, by `Answer` or `Fail`; a cancelled or disconnected one by silence.
- A request joins a job with its own key, or with its wider one. One whose key kills workers is refused (`blame`), and
  so is what a client has open over its cap (`requests`).
- A slot is held exactly by RUNNING and KILLING jobs, and by assistants (`assistance`), which get one only when no job
  wants it. While the host is short of memory fewer slots are given, but never none; and no owner gets more than it may
  have (`Allowances`).
- A *loan* is a part of a running job that another domain's forkserver does for it (the backend of a compile): whoever
  asked waits in its slot, so a loan starts at once and holds none; several jobs may wait for the same one.
- A job runs for as long as the most patient of those who wait when it begins; who joins later and allows more time
  has it run again.
- A forkserver that is lost while it runs jobs costs each of them one retry, and makes them suspects: of these one at a
  time runs in a domain, so that the one that is lost again is known (`forkservers`). One that does not obey is lost
  (`supervision`).
- One client of a domain at a time is asked to start its forkserver (`domains`). When there is none left to ask, the
  domain's waiting jobs fail as PoolUnavailable and the next submission starts afresh, after a pause if that goes on.
- While draining, nothing new starts: what is not running is handed back as PoolUnavailable.

Every decision costs O(log n) in what is open, and O(m) in the m jobs or requests that it changes.
"""

from collections import Counter
from dataclasses import dataclass
from typing import assert_never

from compilepool.daemon import actions as act, events as ev
from compilepool.daemon.blame import Blame
from compilepool.daemon.events import Domain, RequestId
from compilepool.daemon.forkservers import Forkservers
from compilepool.daemon.jobs import HOLDS_SLOT, Job, Phase, SchedulerError, stopping
from compilepool.daemon.ledger import Ledger
from compilepool.daemon.owner import Owner
from compilepool.daemon.supervision import Lingering, Overdue, Unheard
from compilepool.protocol.errors import Failure

TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Account:
    """What one owner has: slots, queued and waiting jobs, seconds of slots so far, and the most slots (None: all)."""

    running: int
    queued: int
    waiting: int
    slot_seconds: float
    most: int | None


class Scheduler:
    """See the module's docstring. `slots`: how many jobs may run at once; `timeout`: seconds that one may run."""

    def __init__(self, slots: int, timeout: float = TIMEOUT_SECONDS) -> None:
        self.slots = slots
        self._timeout = timeout
        self._ledger = Ledger()
        self._blame = Blame()
        self._forkservers = Forkservers(self._ledger, self._blame)
        self._allowed = slots
        self._allowances = ev.Allowances()
        self._next_job = 1

    def __repr__(self) -> str:
        slots = f"slots: {self.running}/{self.slots}{', short of memory' if self.held_back else ''}"
        return f"<Scheduler [jobs: {self._ledger.jobs!r} | {slots} | forkservers: {len(self._forkservers)}]>"

    @property
    def running(self) -> int:
        """Slots that are held, by jobs and by what assists them."""
        return self._ledger.running

    def counters(self, owner: Owner | None = None) -> Counter[str]:
        """How often what has happened: to one owner, or in all."""
        return self._ledger.counters(owner)

    def account(self, owner: Owner) -> Account:
        """What one owner has and had."""
        jobs, held = self._ledger.jobs, self._ledger.held_by(owner)
        queued, waiting = jobs.count(Phase.QUEUED, owner), jobs.count(Phase.WAITING, owner)
        most = self._allowances.of(owner)
        return Account(
            held, queued, waiting, self._ledger.slot_seconds(owner), None if most > self.slots else int(most)
        )

    def owners(self) -> list[Owner]:
        """Whoever asked for anything."""
        return self._ledger.owners()

    @property
    def draining(self) -> bool:
        """Whether nothing new is taken."""
        return self._ledger.draining

    @property
    def queued(self) -> int:
        """Jobs that only want a slot."""
        return len(self._ledger.jobs.queue) + len(self._ledger.jobs.loans)

    @property
    def waiting(self) -> int:
        """Jobs whose domain has no ready forkserver."""
        return self._ledger.jobs.count(Phase.WAITING)

    @property
    def held_back(self) -> bool:
        """Whether jobs wait for memory, and not for a slot."""
        return bool(self.queued) and self.running < self.slots and not self._admits()

    @property
    def idle(self) -> bool:
        """Whether there is no job at all."""
        return not len(self._ledger.jobs)

    def knows(self, request: RequestId) -> bool:
        """Whether the request is in flight."""
        return request in self._ledger.requests

    def deadline(self) -> float | None:
        """When the next `Tick` is due, or None."""
        return self._ledger.deadlines.next()

    def handle(self, event: ev.Event, now: float) -> list[act.Action]:
        """Take one event at time `now` (seconds, monotonic); the actions to perform, in order."""
        self._ledger.actions, self._ledger.now = [], now
        self._take(event, now)
        self._dispatch(now)
        while self._ledger.orphaned:
            request = self._ledger.orphaned.pop()
            if request in self._ledger.requests:
                self._cancelled(request, now)
        return self._ledger.actions

    def _take(self, event: ev.Event, now: float) -> None:  # noqa: C901 - one line for each event
        match event:
            case ev.Submitted():
                self._submitted(event, now)
            case ev.Allowances():
                self._allowances = event
            case ev.Promoted(request):
                self._promoted(request)
            case ev.Cancelled(request):
                self._cancelled(request, now)
            case ev.ClientGone(client):
                self._client_gone(client, now)
            case ev.LookedUp(number, found):
                self._looked_up(number, found, now)
            case ev.StartFailed(client, reason):
                self._forkservers.start_failed(client, reason, now)
            case ev.Attached(forkserver, domain):
                self._forkservers.attached(forkserver, domain, now)
            case ev.Ready(forkserver):
                self._forkservers.ready(forkserver, now)
            case ev.ForkserverGone(forkserver, reason, told):
                self._forkservers.gone(forkserver, reason, told, now)
            case ev.Heard(forkserver):
                self._ledger.supervision.heard(forkserver, now)
            case ev.Memory(room):
                self._allowed = self.running + room
            case ev.Progress(number, unclaimed):
                self._progress(number, unclaimed)
            case ev.Assisted(number, forkserver):
                if assistant := self._ledger.assistance.ended(number, forkserver):
                    self._ledger.assistant_ended(assistant)
            case ev.Succeeded(number, units):
                self._succeeded(number, units, now)
            case ev.JobFailed(number, failure):
                self._job_failed(number, failure, now)
            case ev.Drain(at_once):
                self._drain(at_once, now)
            case ev.Tick():
                self._tick(now)
            case _:
                assert_never(event)

    # ---- requests

    def _submitted(self, event: ev.Submitted, now: float) -> None:
        self._ledger.count(event.domain.owner, "requests")
        if event.request in self._ledger.requests:
            raise SchedulerError(f"{event.request} is in flight already")
        if refusal := self._refusal(event, now):
            self._ledger.fail(event.request, event.domain.owner, refusal)
            return
        job = self._ledger.jobs.with_key(event.domain, event.key, event.wider) or self._new_job(event)
        self._ledger.requests.add(event.request, job, event.priority, event.size, event.behalf)
        self._joined(job, event)

    def _refusal(self, event: ev.Submitted, now: float) -> Failure | None:
        if self._ledger.draining:
            return stopping(event.kernel)
        if event.timeout is not None and not 0 < event.timeout <= self._timeout:
            said = f"a time limit of {event.timeout:g} s was asked for; this daemon takes up to {self._timeout:g} s"
            return Failure("refused", said, event.kernel)
        if over := self._ledger.requests.over_cap(event.request.client, event.domain.owner, event.size):
            return Failure("refused", over, event.kernel)
        if event.behalf is not None and (unasked := self._unasked(event.request.client, event.behalf)):
            return Failure("refused", unasked, event.kernel)
        return self._blame.refusal(event.domain, event.key, now)

    def _unasked(self, client: int, number: int) -> str:
        """Why the workers of a job may not ask for one more part of it; '' if they may."""
        if self._ledger.jobs.unwanted[client] >= self.slots:
            return "too many parts that were asked for and given up are still being stopped"
        job = self._ledger.jobs.get(number)
        if job is None or job.phase is not Phase.RUNNING:
            return f"job {number} does not run"
        if len(self._ledger.requests.asked_by(number)) > self._ledger.assistance.of(number):
            return f"each worker of job {number} waits for a part of it already"
        return ""

    def _new_job(self, event: ev.Submitted) -> Job:
        loan = event.behalf is not None
        job = Job(self._next_job, event.key, event.kernel, event.domain, event.expected, probe=event.probe, loan=loan)
        job.asker = event.request.client
        self._next_job += 1
        self._ledger.jobs.add(job)
        self._ledger.actions.append(act.LookUp(job.number, event.request))
        return job

    def _joined(self, job: Job, event: ev.Submitted) -> None:
        job.patience[event.request] = event.timeout or self._timeout
        if job.phase is Phase.QUEUED and event.priority == "foreground":
            self._ledger.jobs.place(job)

    def _promoted(self, request: RequestId) -> None:
        job = self._ledger.requests.get(request)
        if job is not None and job.waiters[request] == "background":
            job.waiters[request] = "foreground"
            self._ledger.count(job.domain.owner, "promoted")
            self._ledger.jobs.place(job)

    def _cancelled(self, request: RequestId, now: float) -> None:
        if job := self._ledger.requests.get(request):
            self._ledger.count(job.domain.owner, "cancelled")
            self._ledger.requests.release(request)
            self._waiter_left(job, now)

    def _client_gone(self, client: int, now: float) -> None:
        for request in self._ledger.requests.of(client):
            self._cancelled(request, now)
        self._forkservers.start_failed(client, "the client that was asked to start it disconnected", now)

    def _waiter_left(self, job: Job, now: float) -> None:
        if job.waiters:
            self._ledger.jobs.place(job)
        elif job.phase is Phase.RUNNING:
            self._ledger.actions.append(act.Kill(job.number, self._forkservers.forkserver_of(job)))
            self._ledger.move(job, Phase.KILLING)
            self._ledger.supervision.told_to_kill(job.number, now)
        else:
            self._ledger.move(job, Phase.GONE)

    # ---- jobs

    def _looked_up(self, number: int, found: bool, now: float) -> None:
        job = self._ledger.jobs.get(number)
        if job is None:
            return
        if found:
            self._ledger.answer(job, "store")
            return
        if self._ledger.draining:
            self._ledger.fail_job(job, stopping(job.kernel))
            return
        self._forkservers.wanted(job, now)

    def _progress(self, number: int, unclaimed: int) -> None:
        job = self._ledger.jobs.held(number)
        if job.phase is Phase.RUNNING:
            forkserver = self._forkservers.forkserver_of(job)
            self._ledger.assistance.progress(number, job.domain.owner, forkserver, job.expected, unclaimed)

    def _succeeded(self, number: int, units: int, now: float) -> None:
        job = self._ledger.jobs.held(number)
        self._ledger.count(job.domain.owner, "jobs_compiled")
        self._ledger.count(job.domain.owner, "units_compiled", units)
        self._blame.ended(job.domain, job.key, None, now)
        self._ledger.answer(job, "compiled")

    def _job_failed(self, number: int, failure: Failure, now: float) -> None:
        job = self._ledger.jobs.held(number)
        if job.phase is not Phase.KILLING:
            self._ledger.count(job.domain.owner, "jobs_failed")
            if failure.kind != "timeout" or job.seconds >= self._timeout:
                self._blame.ended(job.domain, job.key, failure, now)
        if failure.kind == "timeout" and self._more_patient(job):
            self._ran_out(job, failure)
        else:
            self._ledger.fail_job(job, failure)

    def _more_patient(self, job: Job) -> bool:
        """Whether somebody who joined it later allows more time than it had."""
        return not self._ledger.draining and any(seconds > job.seconds for seconds in job.patience.values())

    def _ran_out(self, job: Job, failure: Failure) -> None:
        """Its time is over for those who allowed no more; for the others it runs again."""
        for request, seconds in list(job.patience.items()):
            if seconds <= job.seconds:
                self._ledger.requests.release(request)
                self._ledger.fail(request, job.domain.owner, failure)
        self._ledger.move(job, Phase.QUEUED)

    def _dispatch(self, now: float) -> None:
        self._forkservers.next_suspects()
        for loan in list(self._ledger.jobs.loans):
            self._run(self._ledger.jobs[loan], now)
        while self._admits() and (number := self._ledger.jobs.queue.pop(self._has_enough)) is not None:
            self._run(self._ledger.jobs[number], now)
        while not self._ledger.draining and self._admits():
            assisted = self._ledger.assistance.next(self._has_enough, now)
            if assisted is None:
                break
            self._ledger.count(self._ledger.jobs[assisted[0]].domain.owner, "assistants")
            self._ledger.actions.append(act.Assist(*assisted))

    def _run(self, job: Job, now: float) -> None:
        forkserver = self._forkservers.forkserver_of(job)
        job.seconds = max(job.patience.values())
        job.began, job.charged = now, job.expected
        self._ledger.actions.append(act.Run(job.number, forkserver, job.seconds))
        self._ledger.move(job, Phase.RUNNING)
        self._ledger.supervision.began(job.number, job.seconds, forkserver, now)

    def _has_enough(self, owner: Owner) -> bool:
        """Whether the owner holds as many slots as it may."""
        return self._ledger.held_by(owner) >= self._allowances.of(owner)

    def _admits(self) -> bool:
        """Whether a slot is free, and there is memory for one more; the first always fits."""
        return self.running < min(self.slots, max(1, self._allowed))

    # ---- time

    def _tick(self, now: float) -> None:
        for due in self._ledger.deadlines.due(now):
            match due:
                case Domain():
                    self._forkservers.late(due, now)
                case Lingering(forkserver):
                    self._forkservers.lingers(forkserver, now)
                case Unheard(forkserver):
                    self._forkservers.unheard(forkserver, now)
                case Overdue(number):
                    self._forkservers.disobeyed(self._ledger.jobs.held(number), now)

    # ---- stopping

    def _drain(self, at_once: bool, now: float) -> None:
        self._ledger.draining = True
        for job in self._ledger.jobs:
            if job.phase is Phase.RUNNING and at_once:
                for request in list(job.waiters):
                    self._ledger.requests.release(request)
                    self._ledger.fail(request, job.domain.owner, stopping(job.kernel))
                self._waiter_left(job, now)
            elif job.phase not in HOLDS_SLOT:
                self._ledger.fail_job(job, stopping(job.kernel))

    # ---- proof

    def check_invariants(self) -> None:
        """Raise AssertionError if the parts of the state contradict each other."""
        self._ledger.jobs.check_invariants()
        self._ledger.requests.check_invariants({request for job in self._ledger.jobs for request in job.waiters})
        assert self.running <= self.slots, f"{self.running} of {self.slots} slots are held"
        for job in self._ledger.jobs:
            assert all(self._ledger.requests.get(request) is job for request in job.waiters)
            self._forkservers.check_invariants(job)
            assert (Overdue(job.number) in self._ledger.deadlines) == (job.phase in HOLDS_SLOT), (
                f"nobody looks after {job}"
            )
        assert not self._ledger.jobs.loans, "a job is queued that needs no slot"
        idle = [
            job for job in self._ledger.jobs if job.phase is Phase.QUEUED and not self._has_enough(job.domain.owner)
        ]
        assert not (idle and self._admits()), f"a slot is free and {idle} are queued"
