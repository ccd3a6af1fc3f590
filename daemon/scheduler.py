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
RUNNING   a worker compiles it; it holds a slot
KILLING   nobody wants it any more and the forkserver was told so; it holds its slot until the worker is gone

A *probe* only asks for its domain's forkserver: its job goes from WAITING to gone when one is ready.
Rules:
- Every request is answered exactly once, by `Answer` or `Fail`; a cancelled or disconnected one by silence.
- A request joins a job with its own key, or with its wider one.
- A slot is held exactly by RUNNING and KILLING jobs, and by assistants (`assistance`), which get one only when no job
  wants it.
- A forkserver that is lost while it runs a job costs that job one retry; lost again, the job fails as PoolUnavailable.
- One client of a domain at a time is asked to start its forkserver (`domains`). When there is none left to ask, the
  domain's waiting jobs fail as PoolUnavailable and the next submission starts afresh.
- While draining, nothing new starts: what is not running is handed back as PoolUnavailable.
"""

from collections import Counter
from typing import assert_never

from compilepool.daemon import actions as act
from compilepool.daemon import events as ev
from compilepool.daemon.assistance import Assistance
from compilepool.daemon.domains import START_SECONDS, WARM_SECONDS, Domains, DomainState
from compilepool.daemon.events import Domain, RequestId
from compilepool.daemon.fairqueue import FairQueue
from compilepool.daemon.jobs import (
    HOLDS_SLOT,
    RETRIES,
    TRANSITIONS,
    Job,
    Phase,
    SchedulerError,
    clients_of,
    place_of,
    stopping,
)
from compilepool.daemon.requests import Requests
from compilepool.protocol.errors import Failure
from compilepool.protocol.messages import Origin


class Scheduler:
    """See the module's docstring. `slots`: how many jobs may run at once."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.draining = False
        self.counters: Counter[str] = Counter()
        self._jobs: dict[int, Job] = {}
        self._by_key: dict[tuple[Domain, str], Job] = {}
        self._requests = Requests()
        self._domains = Domains()
        self._assistance = Assistance()
        self._queue = FairQueue()
        self._busy = 0
        self._next_job = 1
        self._actions: list[act.Action] = []

    def __repr__(self) -> str:
        counts = Counter(job.phase for job in self._jobs.values())
        jobs = ", ".join(f"{counts[phase]} {phase.value}" for phase in Phase if counts[phase]) or "none"
        return f"<Scheduler [jobs: {jobs} | slots: {self.running}/{self.slots} | forkservers: {len(self._domains)}]>"

    @property
    def running(self) -> int:
        """Slots that are held, by jobs and by what assists them."""
        return self._busy + len(self._assistance)

    @property
    def queued(self) -> int:
        """Jobs that only want a slot."""
        return len(self._queue)

    @property
    def waiting(self) -> int:
        """Jobs whose domain has no ready forkserver."""
        return sum(job.phase is Phase.WAITING for job in self._jobs.values())

    @property
    def idle(self) -> bool:
        """Whether there is no job at all."""
        return not self._jobs

    def knows(self, request: RequestId) -> bool:
        """Whether the request is in flight."""
        return request in self._requests

    def deadline(self) -> float | None:
        """When the next `Tick` is due, or None."""
        return self._domains.deadline()

    def handle(self, event: ev.Event, now: float) -> list[act.Action]:
        """Take one event at time `now` (seconds, monotonic); the actions to perform, in order."""
        self._actions = []
        self._take(event, now)
        self._dispatch()
        return self._actions

    def _take(self, event: ev.Event, now: float) -> None:  # noqa: C901 - one line for each event
        match event:
            case ev.Submitted():
                self._submitted(event)
            case ev.Cancelled(request):
                self._cancelled(request)
            case ev.ClientGone(client):
                self._client_gone(client, now)
            case ev.LookedUp(number, found):
                self._looked_up(number, found, now)
            case ev.StartFailed(client, reason):
                self._start_failed(client, reason, now)
            case ev.Attached(forkserver, domain):
                self._attached(forkserver, domain, now)
            case ev.Ready(forkserver):
                self._ready(forkserver)
            case ev.ForkserverGone(forkserver, reason):
                self._forkserver_gone(forkserver, reason, now)
            case ev.Progress(number, unclaimed):
                self._progress(number, unclaimed)
            case ev.Assisted(number, forkserver):
                self._assistance.ended(number, forkserver)
            case ev.Succeeded(number, units):
                self._succeeded(number, units)
            case ev.JobFailed(number, failure):
                self._job_failed(number, failure)
            case ev.Drain(at_once):
                self._drain(at_once)
            case ev.Tick():
                self._tick(now)
            case _:
                assert_never(event)

    # ---- requests

    def _submitted(self, event: ev.Submitted) -> None:
        self.counters["requests"] += 1
        if event.request in self._requests:
            raise SchedulerError(f"{event.request} is in flight already")
        if self.draining:
            self._fail(event.request, stopping(event.kernel))
            return
        known = (self._by_key.get((event.domain, key)) for key in (event.key, event.wider))
        job = next(filter(None, known), None) or self._new_job(event)
        self._requests.add(event.request, job, event.priority)
        if job.phase is Phase.QUEUED:
            self._queue.push(job.number, place_of(job))

    def _new_job(self, event: ev.Submitted) -> Job:
        job = Job(self._next_job, event.key, event.kernel, event.domain, event.expected, event.probe)
        self._next_job += 1
        self._jobs[job.number] = self._by_key[event.domain, event.key] = job
        self._actions.append(act.LookUp(job.number, event.request))
        return job

    def _cancelled(self, request: RequestId) -> None:
        if job := self._requests.get(request):
            self.counters["cancelled"] += 1
            self._requests.release(request)
            self._waiter_left(job)

    def _client_gone(self, client: int, now: float) -> None:
        for request in self._requests.of(client):
            self._cancelled(request)
        for domain in self._domains.asked(client):
            self._ask_next(domain, "the client that was asked to start it disconnected", now)

    def _waiter_left(self, job: Job) -> None:
        if job.waiters:
            if job.phase is Phase.QUEUED:
                self._queue.push(job.number, place_of(job))
            return
        if job.phase is Phase.RUNNING:
            self._actions.append(act.Kill(job.number, self._forkserver_of(job)))
            self._move(job, Phase.KILLING)
        else:
            self._move(job, Phase.GONE)

    # ---- jobs

    def _looked_up(self, number: int, found: bool, now: float) -> None:
        job = self._jobs.get(number)
        if job is None:
            return
        if found:
            self._answer(job, "store")
            return
        if self.draining:
            self._fail_job(job, stopping(job.kernel))
            return
        state = self._domains.of(job.domain)
        if state.ready:
            self._served(job)
            return
        self._move(job, Phase.WAITING)
        if state.unserved:
            self._ask_next(job.domain, "no client is left to start it", now)

    def _served(self, job: Job) -> None:
        """Its forkserver is ready: all that a probe wants to know."""
        if job.probe:
            self._answer(job, "compiled")
        else:
            self._move(job, Phase.QUEUED)

    def _progress(self, number: int, unclaimed: int) -> None:
        job = self._held(number)
        if job.phase is Phase.RUNNING:
            self._assistance.progress(number, self._forkserver_of(job), job.expected, unclaimed)

    def _succeeded(self, number: int, units: int) -> None:
        job = self._held(number)
        self.counters["jobs_compiled"] += 1
        self.counters["units_compiled"] += units
        self._answer(job, "compiled")

    def _job_failed(self, number: int, failure: Failure) -> None:
        job = self._held(number)
        if job.phase is not Phase.KILLING:
            self.counters["jobs_failed"] += 1
        self._fail_job(job, failure)

    def _held(self, number: int) -> Job:
        job = self._jobs.get(number)
        if job is None or job.phase not in HOLDS_SLOT:
            raise SchedulerError(f"job {number} is not running")
        return job

    def _answer(self, job: Job, origin: Origin) -> None:
        for request in list(job.waiters):
            self._requests.release(request)
            self._actions.append(act.Answer(request, job.number, origin))
            self.counters["probes" if job.probe else f"answered_{origin}"] += 1
            if origin == "compiled":
                origin = "joined"
        self._move(job, Phase.GONE)

    def _fail_job(self, job: Job, failure: Failure) -> None:
        for request in list(job.waiters):
            self._requests.release(request)
            self._fail(request, failure)
        self._move(job, Phase.GONE)

    def _fail(self, request: RequestId, failure: Failure) -> None:
        self.counters[f"failed_{failure.kind}"] += 1
        self._actions.append(act.Fail(request, failure))

    def _dispatch(self) -> None:
        while self.running < self.slots and (number := self._queue.pop()) is not None:
            job = self._jobs[number]
            self._actions.append(act.Run(number, self._forkserver_of(job)))
            self._move(job, Phase.RUNNING)
        while not self.draining and self.running < self.slots and (assisted := self._assistance.next()):
            self.counters["assistants"] += 1
            self._actions.append(act.Assist(*assisted))

    def _forkserver_of(self, job: Job) -> int:
        forkserver = self._domains.of(job.domain).forkserver
        if forkserver is None:
            raise SchedulerError(f"{job} has no forkserver")
        return forkserver

    def _move(self, job: Job, phase: Phase) -> None:
        """The only place where a phase changes; slots, queue and indexes follow it."""
        if phase not in TRANSITIONS[job.phase]:
            raise SchedulerError(f"job {job.number} ({job.kernel}) can't go from {job.phase.value} to {phase.value}")
        self._busy += (phase in HOLDS_SLOT) - (job.phase in HOLDS_SLOT)
        job.phase = phase
        if phase is Phase.QUEUED:
            self._queue.push(job.number, place_of(job))
        else:
            self._queue.remove(job.number)
        if phase is not Phase.RUNNING:
            self._assistance.forget(job.number)
        if phase in (Phase.KILLING, Phase.GONE) and self._by_key.get((job.domain, job.key)) is job:
            del self._by_key[job.domain, job.key]
        if phase is Phase.GONE:
            del self._jobs[job.number]
            self._actions.append(act.Forget(job.number))
        self._follow(job)

    def _follow(self, job: Job) -> None:
        """Keep the domain's list of its jobs (those past the lookup)."""
        if state := self._domains.known(job.domain):
            if job.phase is Phase.GONE:
                state.jobs.pop(job.number, None)
            else:
                state.jobs[job.number] = None

    # ---- forkservers

    def _attached(self, forkserver: int, domain: Domain, now: float) -> None:
        state = self._domains.known(domain)
        if self.draining or (state and state.forkserver is not None):
            reason = "the daemon is stopping" if self.draining else "one is attached already for this toolchain"
            self._actions.append(act.Retire(forkserver, reason))
        else:
            self._domains.attach(forkserver, domain, now)
            self._actions.append(act.Adopt(forkserver))

    def _ready(self, forkserver: int) -> None:
        if state := self._domains.ready(forkserver):
            self.counters["forkservers_started"] += 1
            for number in list(state.jobs):
                if self._jobs[number].phase is Phase.WAITING:
                    self._served(self._jobs[number])

    def _forkserver_gone(self, forkserver: int, reason: str, now: float) -> None:
        served = self._domains.served_by(forkserver)
        if served is None:
            return
        state = self._domains.of(served)
        self.counters["forkservers_lost"] += state.ready
        self._domains.gone(forkserver)
        self._assistance.lost(forkserver)
        for number in list(state.jobs):
            self._forkserver_lost(self._jobs[number], reason)
        self._ask_next(served, reason, now)

    def _forkserver_lost(self, job: Job, reason: str) -> None:
        if job.phase is Phase.KILLING:
            self._move(job, Phase.GONE)
        elif job.phase is Phase.QUEUED:
            self._move(job, Phase.WAITING)
        elif job.phase is Phase.RUNNING:
            job.lost += 1
            if job.lost > RETRIES or self.draining:
                lost = f"its forkserver was lost while compiling it: {reason}"
                self._fail_job(job, Failure("unavailable", lost, job.kernel))
            else:
                self._move(job, Phase.WAITING)

    def _start_failed(self, client: int, reason: str, now: float) -> None:
        for domain in self._domains.asked(client):
            self._ask_next(domain, reason, now)

    def _ask_next(self, domain: Domain, reason: str, now: float) -> None:
        """Ask a client that waits and has not been tried; if there is none, give the waiting jobs back."""
        numbers = self._domains.of(domain).jobs
        waiting = [self._jobs[number] for number in numbers if self._jobs[number].phase is Phase.WAITING]
        client = self._domains.ask(domain, () if self.draining else clients_of(waiting), now)
        if client is not None:
            self._actions.append(act.AskForForkserver(client))
            return
        for job in waiting:
            self._fail_job(job, Failure("unavailable", f"no forkserver could be started: {reason}", job.kernel))
        self._domains.give_up(domain)

    def _tick(self, now: float) -> None:
        for domain, state in self._domains.late(now):
            if state.forkserver is None:
                self._ask_next(domain, f"none attached within {START_SECONDS:.0f} s", now)
            else:
                reason = f"it was not ready within {WARM_SECONDS:.0f} s"
                self._actions.append(act.Retire(state.forkserver, reason))
                self._forkserver_gone(state.forkserver, reason, now)

    # ---- stopping

    def _drain(self, at_once: bool) -> None:
        self.draining = True
        for job in list(self._jobs.values()):
            if job.phase is Phase.RUNNING and at_once:
                for request in list(job.waiters):
                    self._requests.release(request)
                    self._fail(request, stopping(job.kernel))
                self._waiter_left(job)
            elif job.phase not in HOLDS_SLOT:
                self._fail_job(job, stopping(job.kernel))

    # ---- proof

    def check_invariants(self) -> None:
        """Raise AssertionError if the parts of the state contradict each other."""
        held = [job for job in self._jobs.values() if job.phase in HOLDS_SLOT]
        assert self._busy == len(held), f"{self._busy} slots counted, {len(held)} held"
        assert self.running <= self.slots, f"{self.running} of {self.slots} slots are held"
        self._requests.check_invariants({request for job in self._jobs.values() for request in job.waiters})
        for job in self._jobs.values():
            assert bool(job.waiters) == (job.phase is not Phase.KILLING), f"{job} has the wrong waiters"
            assert (job.number in self._queue) == (job.phase is Phase.QUEUED), f"{job} is misplaced"
            assert all(self._requests.get(request) is job for request in job.waiters)
            state = self._domains.known(job.domain) or DomainState()
            assert job.phase is not Phase.QUEUED or state.ready, f"{job} is queued for no forkserver"
            assert job.phase is not Phase.WAITING or not state.ready, f"{job} waits beside a ready forkserver"
            assert job.phase is not Phase.WAITING or not state.unserved, f"{job} waits for nothing"
        assert self.draining or self.running == self.slots or not len(self._queue), "a slot is free and a job is queued"
