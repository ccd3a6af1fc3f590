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

Rules:
- Every request is answered exactly once, by `Answer` or `Fail`; a cancelled or disconnected one by silence.
- A slot is held exactly by RUNNING and KILLING jobs.
- A forkserver that is lost while it runs a job costs that job one retry; lost again, the job fails as PoolUnavailable.
- One client of a domain at a time is asked to start its forkserver. One that fails, or takes longer than
  `START_SECONDS` to attach or `WARM_SECONDS` to be ready, is followed by the next client that has not been tried;
  when there is none, the domain's waiting jobs fail as PoolUnavailable and the next submission starts afresh.
- While draining, nothing new starts: what is not running is handed back as PoolUnavailable.
"""

from collections import Counter
from typing import assert_never

from compilepool.daemon import actions as act
from compilepool.daemon import events as ev
from compilepool.daemon.events import Domain, RequestId
from compilepool.daemon.fairqueue import FairQueue
from compilepool.daemon.jobs import (
    HOLDS_SLOT,
    RETRIES,
    START_SECONDS,
    TRANSITIONS,
    WARM_SECONDS,
    DomainState,
    Job,
    Phase,
    SchedulerError,
    clients_of,
    place_of,
    stopping,
)
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
        self._by_request: dict[RequestId, Job] = {}
        self._of_client: dict[int, dict[RequestId, None]] = {}
        self._domains: dict[Domain, DomainState] = {}
        self._forkservers: dict[int, Domain] = {}
        self._queue = FairQueue()
        self._busy = 0
        self._next_job = 1
        self._actions: list[act.Action] = []

    def __repr__(self) -> str:
        counts = Counter(job.phase for job in self._jobs.values())
        jobs = ", ".join(f"{counts[phase]} {phase.value}" for phase in Phase if counts[phase]) or "none"
        return f"<Scheduler [jobs: {jobs} | slots: {self._busy}/{self.slots} | forkservers: {len(self._forkservers)}]>"

    @property
    def running(self) -> int:
        """Jobs that hold a slot."""
        return self._busy

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
        return request in self._by_request

    def deadline(self) -> float | None:
        """When the next `Tick` is due, or None."""
        return min((d.deadline for d in self._domains.values() if d.deadline is not None), default=None)

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
        if event.request in self._by_request:
            raise SchedulerError(f"{event.request} is in flight already")
        if self.draining:
            self._fail(event.request, stopping(event.kernel))
            return
        job = self._by_key.get((event.domain, event.key)) or self._new_job(event)
        job.waiters[event.request] = event.priority
        self._by_request[event.request] = job
        self._of_client.setdefault(event.request.client, {})[event.request] = None
        if job.phase is Phase.QUEUED:
            self._queue.push(job.number, place_of(job))

    def _new_job(self, event: ev.Submitted) -> Job:
        job = Job(self._next_job, event.key, event.kernel, event.domain, event.expected)
        self._next_job += 1
        self._jobs[job.number] = self._by_key[event.domain, event.key] = job
        self._actions.append(act.LookUp(job.number, event.key, event.request))
        return job

    def _cancelled(self, request: RequestId) -> None:
        if job := self._by_request.get(request):
            self.counters["cancelled"] += 1
            self._release(request)
            self._waiter_left(job)

    def _client_gone(self, client: int, now: float) -> None:
        for request in list(self._of_client.get(client, ())):
            self._cancelled(request)
        for domain, state in list(self._domains.items()):
            if state.asked == client and state.forkserver is None:
                self._ask_next(domain, "the client that was asked to start it disconnected", now)

    def _release(self, request: RequestId) -> None:
        job = self._by_request.pop(request)
        del job.waiters[request]
        mine = self._of_client[request.client]
        del mine[request]
        if not mine:
            del self._of_client[request.client]

    def _waiter_left(self, job: Job) -> None:
        if job.waiters:
            if job.phase is Phase.QUEUED:
                self._queue.push(job.number, place_of(job))
            return
        if job.phase is Phase.RUNNING:
            forkserver = self._domains[job.domain].forkserver
            if forkserver is None:
                raise SchedulerError(f"{job} runs without a forkserver")
            self._actions.append(act.Kill(job.number, forkserver))
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
        state = self._domains.setdefault(job.domain, DomainState())
        self._move(job, Phase.QUEUED if state.ready else Phase.WAITING)
        if state.forkserver is None and state.asked is None:
            self._ask_next(job.domain, "no client is left to start it", now)

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
            self._release(request)
            self._actions.append(act.Answer(request, job.number, origin))
            self.counters[f"answered_{origin}"] += 1
            if origin == "compiled":
                origin = "joined"
        self._move(job, Phase.GONE)

    def _fail_job(self, job: Job, failure: Failure) -> None:
        for request in list(job.waiters):
            self._release(request)
            self._fail(request, failure)
        self._move(job, Phase.GONE)

    def _fail(self, request: RequestId, failure: Failure) -> None:
        self.counters[f"failed_{failure.kind}"] += 1
        self._actions.append(act.Fail(request, failure))

    def _dispatch(self) -> None:
        while self._busy < self.slots and (number := self._queue.pop()) is not None:
            job = self._jobs[number]
            forkserver = self._domains[job.domain].forkserver
            if forkserver is None:
                raise SchedulerError(f"{job} is queued without a forkserver")
            self._actions.append(act.Run(number, forkserver))
            self._move(job, Phase.RUNNING)

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
        if phase in (Phase.KILLING, Phase.GONE) and self._by_key.get((job.domain, job.key)) is job:
            del self._by_key[job.domain, job.key]
        if phase is Phase.GONE:
            del self._jobs[job.number]
            self._actions.append(act.Forget(job.number))
        self._follow(job)

    def _follow(self, job: Job) -> None:
        """Keep the domain's list of its jobs (those past the lookup)."""
        if state := self._domains.get(job.domain):
            if job.phase is Phase.GONE:
                state.jobs.pop(job.number, None)
            else:
                state.jobs[job.number] = None

    # ---- forkservers

    def _attached(self, forkserver: int, domain: Domain, now: float) -> None:
        state = self._domains.setdefault(domain, DomainState())
        if self.draining or state.forkserver is not None:
            reason = "the daemon is stopping" if self.draining else "one is attached already for this toolchain"
            self._actions.append(act.Retire(forkserver, reason))
            return
        self._forkservers[forkserver] = domain
        state.forkserver, state.ready, state.deadline = forkserver, False, now + WARM_SECONDS

    def _ready(self, forkserver: int) -> None:
        domain = self._forkservers.get(forkserver)
        if domain is None:
            return
        state = self._domains[domain]
        state.ready, state.asked, state.deadline = True, None, None
        state.tried.clear()
        self.counters["forkservers_started"] += 1
        for number in list(state.jobs):
            if self._jobs[number].phase is Phase.WAITING:
                self._move(self._jobs[number], Phase.QUEUED)

    def _forkserver_gone(self, forkserver: int, reason: str, now: float) -> None:
        domain = self._forkservers.pop(forkserver, None)
        if domain is None:
            return
        state = self._domains[domain]
        self.counters["forkservers_lost"] += state.ready
        state.forkserver, state.ready, state.deadline = None, False, None
        for number in list(state.jobs):
            self._forkserver_lost(self._jobs[number], reason)
        self._ask_next(domain, reason, now)

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
        for domain, state in list(self._domains.items()):
            if state.asked == client and state.forkserver is None:
                self._ask_next(domain, reason, now)

    def _ask_next(self, domain: Domain, reason: str, now: float) -> None:
        """Ask a client that waits and has not been tried; if there is none, give the waiting jobs back."""
        state = self._domains[domain]
        state.asked = state.deadline = None
        waiting = [self._jobs[number] for number in state.jobs if self._jobs[number].phase is Phase.WAITING]
        candidate = next((c for c in clients_of(waiting) if c not in state.tried), None)
        if candidate is not None and not self.draining:
            state.tried.add(candidate)
            state.asked, state.deadline = candidate, now + START_SECONDS
            self._actions.append(act.AskForForkserver(candidate))
            return
        for job in waiting:
            self._fail_job(job, Failure("unavailable", f"no forkserver could be started: {reason}", job.kernel))
        if not state.jobs:
            del self._domains[domain]
        else:
            state.tried.clear()

    def _tick(self, now: float) -> None:
        for domain, state in list(self._domains.items()):
            if state.deadline is None or now < state.deadline:
                continue
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
                    self._release(request)
                    self._fail(request, stopping(job.kernel))
                self._waiter_left(job)
            elif job.phase not in HOLDS_SLOT:
                self._fail_job(job, stopping(job.kernel))

    # ---- proof

    def check_invariants(self) -> None:
        """Raise AssertionError if the parts of the state contradict each other."""
        held = [job for job in self._jobs.values() if job.phase in HOLDS_SLOT]
        assert self._busy == len(held), f"{self._busy} slots counted, {len(held)} held"
        assert self._busy <= self.slots, f"{self._busy} of {self.slots} slots are held"
        assert {r for job in self._jobs.values() for r in job.waiters} == set(self._by_request)
        assert {r for mine in self._of_client.values() for r in mine} == set(self._by_request)
        for job in self._jobs.values():
            assert bool(job.waiters) == (job.phase is not Phase.KILLING), f"{job} has the wrong waiters"
            assert (job.number in self._queue) == (job.phase is Phase.QUEUED), f"{job} is misplaced"
            assert all(self._by_request[request] is job for request in job.waiters)
            state = self._domains.get(job.domain, DomainState())
            assert job.phase is not Phase.QUEUED or state.ready, f"{job} is queued for no forkserver"
            assert job.phase is not Phase.WAITING or not state.ready, f"{job} waits beside a ready forkserver"
            trying = state.forkserver is not None or state.asked is not None
            assert job.phase is not Phase.WAITING or trying, f"{job} waits for nothing"
        assert self.draining or self._busy == self.slots or not len(self._queue), "a slot is free and a job is queued"
