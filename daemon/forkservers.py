"""What becomes of jobs when their forkserver comes, goes, can't be started, or does not obey; rules in `scheduler`.

A job whose forkserver is lost while it runs may have been the reason: a kernel can kill its parent. It is a *suspect*:
tried once more, and of a domain's suspects one after the other, while what is not suspected runs beside it. A suspect
whose forkserver is lost again is the reason: it fails as WorkerCrashed, and is blamed.
"""

from compilepool.daemon import actions as act
from compilepool.daemon.blame import Blame
from compilepool.daemon.domains import START_SECONDS, WARM_SECONDS, Domains
from compilepool.daemon.events import Domain
from compilepool.daemon.jobs import HOLDS_SLOT, RETRIES, Job, Phase, SchedulerError, clients_of
from compilepool.daemon.ledger import Ledger
from compilepool.daemon.supervision import OBEY_SECONDS
from compilepool.protocol.errors import Failure


class Forkservers:
    """Of all domains; see the module's docstring."""

    def __init__(self, ledger: Ledger, blame: Blame) -> None:
        self._ledger = ledger
        self._blame = blame
        self._suspects: dict[Domain, list[Job]] = {}
        self._domains = Domains(ledger.deadlines)

    def __len__(self) -> int:
        return len(self._domains)

    def forkserver_of(self, job: Job) -> int:
        """The one that serves the job's domain."""
        forkserver = self._domains.of(job.domain).forkserver
        if forkserver is None:
            raise SchedulerError(f"{job} has no forkserver")
        return forkserver

    def wanted(self, job: Job, now: float) -> None:
        """The store does not know the job: it is for a forkserver, which may have to be asked for."""
        state = self._domains.of(job.domain)
        if state.ready:
            self._served(job)
            return
        self._ledger.move(job, Phase.WAITING)
        if state.unserved:
            self._ask_next(job.domain, state.reason or "no client is left to start it", now)

    def _served(self, job: Job) -> None:
        """Its forkserver is ready: all that a probe wants to know."""
        if job.probe:
            self._ledger.answer(job, "compiled")
        elif not job.lost:
            self._ledger.move(job, Phase.QUEUED)

    def next_suspects(self) -> None:
        """Let a suspect of each ready domain have its turn, if none has."""
        for domain, suspects in list(self._suspects.items()):
            suspects[:] = [job for job in suspects if job.phase is not Phase.GONE]
            if not suspects:
                del self._suspects[domain]
            elif self._domains.of(domain).ready and suspects[0].phase is Phase.WAITING:
                self._ledger.move(suspects[0], Phase.QUEUED)

    def attached(self, forkserver: int, domain: Domain, now: float) -> None:
        """One has come: it is adopted, or there is one already."""
        if self._ledger.draining or self._domains.of(domain).forkserver is not None:
            reason = "the daemon is stopping" if self._ledger.draining else "one is attached already for this toolchain"
            self._ledger.actions.append(act.Retire(forkserver, reason))
        else:
            self._domains.attach(forkserver, domain, now)
            self._ledger.actions.append(act.Adopt(forkserver))

    def ready(self, forkserver: int, now: float) -> None:
        """It has imported everything; what waits for it is queued."""
        domain = self._domains.ready(forkserver, now)
        if domain is not None:
            self._ledger.count(domain.owner, "forkservers_started")
            for job in self._ledger.jobs.of(domain, Phase.WAITING):
                self._served(job)

    def gone(self, forkserver: int, reason: str, told: bool, now: float) -> None:
        """It has left, or was given up; `told`: the reason is its own."""
        served = self._domains.served_by(forkserver)
        if served is None:
            return
        was_ready = self._domains.of(served).ready
        self._ledger.count(served.owner, "forkservers_lost", was_ready)
        # Whom a kernel has ended is no failure of those who started it.
        self._domains.gone(forkserver, "" if self._runs_suspect(served) else reason, now)
        self._ledger.supervision.gone(forkserver)
        for assistant in self._ledger.assistance.lost(forkserver):
            self._ledger.assistant_ended(assistant)
        for job in self._ledger.jobs.of(served, Phase.QUEUED, *HOLDS_SLOT):
            self._forkserver_lost(job, reason, now)
        if was_ready or told or not self._domains.await_starter(served, now):
            self._ask_next(served, reason, now)

    def _runs_suspect(self, domain: Domain) -> bool:
        return any(job.phase is Phase.RUNNING for job in self._suspects.get(domain, ())[:1])

    def _forkserver_lost(self, job: Job, reason: str, now: float) -> None:
        if job.phase is Phase.KILLING:
            self._ledger.move(job, Phase.GONE)
        elif job.phase is Phase.QUEUED:
            self._ledger.move(job, Phase.WAITING)
        elif self._ledger.draining:
            lost = f"its forkserver was lost while compiling it: {reason}"
            self._ledger.fail_job(job, Failure("unavailable", lost, job.kernel))
        elif job.lost >= RETRIES:
            lost = f"its forkserver was lost twice while compiling it, the second time alone: {reason}"
            failure = Failure("worker-crashed", lost, job.kernel)
            self._blame.ended(job.domain, job.key, failure, now)
            self._ledger.fail_job(job, failure)
        else:
            job.lost += 1
            self._suspects.setdefault(job.domain, []).append(job)
            self._ledger.move(job, Phase.WAITING)

    def start_failed(self, client: int, reason: str, now: float) -> None:
        """A client will not bring the one that it was asked for."""
        for domain in self._domains.asked(client):
            if not self._domains.of(domain).forkserver:
                self._ask_next(domain, reason, now)

    def _ask_next(self, domain: Domain, reason: str, now: float) -> None:
        """Ask a client that waits and has not been tried; if there is none, give the waiting jobs back."""
        waiting = self._ledger.jobs.of(domain, Phase.WAITING)
        client = self._domains.ask(domain, () if self._ledger.draining else clients_of(waiting), now)
        if client is not None:
            self._ledger.actions.append(act.AskForForkserver(client))
            return
        for job in waiting:
            self._ledger.fail_job(job, Failure("unavailable", f"no forkserver could be started: {reason}", job.kernel))
        self._domains.give_up(domain, reason, now)

    def late(self, domain: Domain, now: float) -> None:
        """It should have attached, or been ready."""
        forkserver = self._domains.of(domain).forkserver
        if forkserver is None:
            self._ask_next(domain, f"none attached within {START_SECONDS:.0f} s", now)
        else:
            self._drop(forkserver, f"it was not ready within {WARM_SECONDS:.0f} s", now)

    def unheard(self, forkserver: int, now: float) -> None:
        """It should say something, if it has work."""
        domain = self._domains.served_by(forkserver)
        if domain is None or not self._ledger.jobs.holds(domain):
            self._ledger.supervision.rests(forkserver)
        elif self._ledger.supervision.silent(forkserver, now):
            self._drop(forkserver, f"it did not answer for {OBEY_SECONDS:.0f} s", now)
        else:
            self._ledger.actions.append(act.Ping(forkserver))

    def lingers(self, forkserver: int, now: float) -> None:
        """Its assistants should be over, where their jobs are."""

        def runs(number: int) -> bool:
            job = self._ledger.jobs.get(number)
            return job is not None and job.phase is Phase.RUNNING

        if self._ledger.assistance.lingering(forkserver, runs):
            self._drop(forkserver, "a worker that assisted goes on though its job is over", now)

    def disobeyed(self, job: Job, now: float) -> None:
        """Its job should be over."""
        order = "kill a worker" if job.phase is Phase.KILLING else f"stop {job.kernel} after {job.seconds:g} s"
        self._drop(self.forkserver_of(job), f"it was to {order}, and did not", now)

    def _drop(self, forkserver: int, reason: str, now: float) -> None:
        if served := self._domains.served_by(forkserver):
            self._ledger.count(served.owner, "forkservers_dropped")
        self._ledger.actions.append(act.Retire(forkserver, reason))
        self.gone(forkserver, reason, True, now)

    def check_invariants(self, job: Job) -> None:
        """Raise AssertionError if the job's phase contradicts its domain's state."""
        state = self._domains.of(job.domain)
        assert job.phase is not Phase.QUEUED or state.ready, f"{job} is queued for no forkserver"
        turn = self._suspects.get(job.domain, [])[:1]
        assert job.phase is not Phase.WAITING or not state.ready or (job.lost and [job] != turn), f"{job} waits idly"
        assert job.phase is not Phase.WAITING or not state.unserved, f"{job} waits for nothing"
