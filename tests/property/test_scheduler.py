"""Any order of events: every request is answered exactly once, no slot leaks, nothing waits for nothing."""

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from compilepool.daemon import actions as act, events as ev, scheduler as s
from compilepool.daemon.owner import HOST, SHARED, Owner
from compilepool.protocol.errors import Failure, FailureKind

CLIENTS = st.integers(1, 4)
KEYS = st.sampled_from("abcd")
BACKEND = ev.Domain(SHARED, "a")
DOMAINS = [ev.Domain(Owner(HOST, 1000), "a"), ev.Domain(Owner(HOST, 1001), "a")]


class SchedulerMachine(RuleBasedStateMachine):
    """Plays clients, store, and obedient or dying forkservers."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = s.Scheduler(slots=2)
        self.now = 0.0
        self.next_id = 1
        self.open: set[ev.RequestId] = set()
        self.ended: set[ev.RequestId] = set()
        self.lookups: list[int] = []
        self.running: dict[int, int] = {}
        self.killed: set[int] = set()
        # What workers have asked, by whose job it is a part of.
        self.parts: dict[ev.RequestId, int] = {}
        self.assistants: list[tuple[int, int]] = []
        self.forkservers: dict[int, ev.Domain] = {}

    def feed(self, event: ev.Event) -> None:
        for action in self.scheduler.handle(event, self.now):
            match action:
                case act.Answer(request) | act.Fail(request):
                    assert request in self.open, f"{request} was answered twice, or never asked"
                    self.open.remove(request)
                    self.ended.add(request)
                case act.LookUp(job):
                    self.lookups.append(job)
                case act.Run(job, forkserver):
                    assert job not in self.running
                    assert forkserver in self.forkservers
                    self.running[job] = forkserver
                case act.Assist(job, forkserver):
                    assert self.running[job] == forkserver
                    self.assistants.append((job, forkserver))
                case act.Retire(forkserver):
                    self.retired(forkserver)
                case act.Kill(job):
                    assert job in self.running
                    self.killed.add(job)
        # Nobody waits for parts of a job that is over, or is to be: they are taken back without a word.
        over = {part for part, job in self.parts.items() if job not in self.running or job in self.killed}
        self.ended |= over & self.open
        self.open -= over

    def retired(self, forkserver: int) -> None:
        if self.forkservers.pop(forkserver, None):
            self.running = {job: f for job, f in self.running.items() if f != forkserver}
            self.assistants = [(job, f) for job, f in self.assistants if f != forkserver]

    @rule(
        client=CLIENTS,
        key=KEYS,
        priority=st.sampled_from(["foreground", "background"]),
        wider=st.sampled_from("ab"),
        timeout=st.sampled_from([None, 5.0, 900.0]),
    )
    def submit(self, client: int, key: str, priority: str, wider: str, timeout: float | None) -> None:
        request = ev.RequestId(client, self.next_id)
        self.next_id += 1
        self.open.add(request)
        domain = DOMAINS[client % 2]
        submitted = ev.Submitted(request, domain, key, key, priority, 1.0, 10, timeout, wider)  # type: ignore[arg-type]
        self.feed(submitted)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), key=KEYS)
    def lower(self, data: st.DataObject, key: str) -> None:
        """A worker asks for a part of its job, or its forkserver says so."""
        job = data.draw(st.sampled_from(sorted(self.running)))
        request = ev.RequestId(self.running[job], self.next_id)
        self.next_id += 1
        self.open.add(request)
        self.parts[request] = job
        self.feed(ev.Submitted(request, BACKEND, key, key, "foreground", 1.0, 10, behalf=job))

    @rule(slots=st.sampled_from([None, 1, 2]), own=st.sampled_from([None, 1, 2]))
    def allow(self, slots: int | None, own: int | None) -> None:
        self.feed(ev.Allowances(slots, {1000: own}))

    @precondition(lambda self: self.open | self.ended)
    @rule(data=st.data())
    def promote(self, data: st.DataObject) -> None:
        self.feed(ev.Promoted(data.draw(st.sampled_from(sorted(self.open | self.ended)))))

    @rule(room=st.integers(-3, 3))
    def memory(self, room: int) -> None:
        self.feed(ev.Memory(room))

    @precondition(lambda self: self.forkservers)
    @rule(data=st.data())
    def hear(self, data: st.DataObject) -> None:
        self.feed(ev.Heard(data.draw(st.sampled_from(sorted(self.forkservers)))))

    @rule(client=CLIENTS)
    def probe(self, client: int) -> None:
        request = ev.RequestId(client, self.next_id)
        self.next_id += 1
        self.open.add(request)
        self.feed(ev.Submitted(request, DOMAINS[client % 2], "probe", "probe", "foreground", 0.0, probe=True))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), unclaimed=st.integers(0, 5))
    def progress(self, data: st.DataObject, unclaimed: int) -> None:
        self.feed(ev.Progress(data.draw(st.sampled_from(sorted(self.running))), unclaimed))

    @precondition(lambda self: self.assistants)
    @rule(data=st.data())
    def assistant_ends(self, data: st.DataObject) -> None:
        assistant = data.draw(st.sampled_from(self.assistants))
        self.assistants.remove(assistant)
        self.feed(ev.Assisted(*assistant))

    @precondition(lambda self: self.lookups)
    @rule(data=st.data(), found=st.booleans())
    def looked_up(self, data: st.DataObject, found: bool) -> None:
        job = data.draw(st.sampled_from(self.lookups))
        self.lookups.remove(job)
        self.feed(ev.LookedUp(job, found))

    @precondition(lambda self: self.open | self.ended)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.open | self.ended)))
        self.open.discard(request)
        self.feed(ev.Cancelled(request))

    @rule(client=CLIENTS)
    def leave(self, client: int) -> None:
        self.open = {request for request in self.open if request.client != client}
        self.feed(ev.ClientGone(client))

    @rule(domain=st.sampled_from([*DOMAINS, BACKEND]))
    def attach(self, domain: ev.Domain) -> None:
        number = 100 + self.next_id
        self.next_id += 1
        self.forkservers[number] = domain
        self.feed(ev.Attached(number, domain))

    @precondition(lambda self: self.forkservers)
    @rule(data=st.data(), lost=st.booleans(), told=st.booleans())
    def ready_or_lost(self, data: st.DataObject, lost: bool, told: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.forkservers)))
        if lost:
            self.retired(number)
            self.leave(number)
            self.feed(ev.ForkserverGone(number, "lost", told))
        else:
            self.feed(ev.Ready(number))

    @rule(client=CLIENTS)
    def start_failed(self, client: int) -> None:
        self.feed(ev.StartFailed(client, "no"))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), kind=st.sampled_from([None, "compile-error", "worker-crashed", "timeout", "out-of-memory"]))
    def job_ends(self, data: st.DataObject, kind: FailureKind | None) -> None:
        job = data.draw(st.sampled_from(sorted(self.running)))
        del self.running[job]
        self.feed(ev.JobFailed(job, Failure(kind, "no", "k")) if kind else ev.Succeeded(job, 1))

    @rule(seconds=st.sampled_from([1.0, 15.0, 40.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.feed(ev.Tick())

    @rule(now=st.booleans())
    @precondition(lambda self: self.next_id > 25)
    def drain(self, now: bool) -> None:
        self.feed(ev.Drain(now))

    @invariant()
    def consistent(self) -> None:
        self.scheduler.check_invariants()
        loans = [job for job, forkserver in self.running.items() if self.forkservers[forkserver] == BACKEND]
        assert self.scheduler.running == len(self.running) - len(loans) + len(self.assistants)
        for request in self.open:
            assert self.scheduler.knows(request)

    def assistants_end(self) -> None:
        while self.assistants:
            self.feed(ev.Assisted(*self.assistants.pop()))

    def teardown(self) -> None:
        """Whatever the state: what is queued gets its turn, and all clients' leaving leaves nothing."""
        while self.running:
            job = next(iter(self.running))
            del self.running[job]
            self.feed(ev.Succeeded(job, 1))
            if not self.running:
                self.assistants_end()
        assert not self.scheduler.queued
        for client in (*range(1, 5), *self.forkservers):
            self.leave(client)
        for job in list(self.running):
            self.running.pop(job)
            self.feed(ev.JobFailed(job, Failure("cancelled", "")))
        self.assistants_end()
        assert self.scheduler.running == 0
        self.scheduler.check_invariants()
        assert self.scheduler.idle


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
