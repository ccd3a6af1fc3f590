"""The forkserver: imports torch and triton once, compiles once, then forks a worker for every job it is given.

    attach (Hello, Adopt) -> import, warm up, prove one thread -> Ready -> loop: Spawn -> begin, worker gone -> answer

Workers are forked ahead, `STANDBY` of them, when there is nothing else to do: a job that comes finds one waiting.

It attaches before it imports, so that the daemon knows within milliseconds that one is on its way and notices at once
when it dies. It has one thread and no event loop: `fork` copies only the calling thread, and a lock that another one
held would stay locked in every worker. It waits on two descriptors, the daemon's socket and the wake-up pipe of
SIGCHLD; while something runs it looks after its limits (`limits`), and otherwise wakes for nothing else until it has
been idle for `idle_exit` seconds (infinite: for ever).

A worker that is over a limit, or no longer wanted, is told to end, and killed when it does not. What it started goes
with it: its process group at once, and what went to the background when it ends (`family`). When the daemon goes, its
workers have nobody to answer to: they are killed and the forkserver exits.
"""

import contextlib
import gc
import itertools
import math
import os
import pwd
import selectors
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from compilepool.daemon.worker import sandbox
from compilepool.daemon.worker.family import become_subreaper, end_forkservers, end_orphans, show_as
from compilepool.daemon.worker.link import DaemonLink, Retired
from compilepool.daemon.worker.no_driver import occupy
from compilepool.daemon.worker.scratch import scratch_root
from compilepool.protocol import messages as m
from compilepool.protocol.environment import decides_compiles
from compilepool.protocol.errors import Failure, PoolUnavailable, Refused

if TYPE_CHECKING:
    from compilepool.daemon.worker.process import Job, Outcome, Worker

# Compiles once in this directory, and says for which toolchain's TTIR it is a backend ('': it is none).
WarmUp = Callable[[Path], str]

# Libraries read these when they are loaded; torch's CUDA build has 17 threads without them. No worker may see a device.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    # Importing torch must not start another one.
    "COMPILEPOOL": "0",
}
NAME = b"cpool-forksrv"
# Idle workers: a burst on 16 slots finds them all. One costs its page tables, 1 to 2 MB.
STANDBY = 16
# How often limits are looked after while something runs.
WATCH_SECONDS = 0.2
_ORPHANS_SECONDS, _ORPHANS_ROUNDS = 0.01, 500


def prepare_environment() -> None:
    """Make this process's environment that of a forkserver; before the first import of torch."""
    for name in filter(decides_compiles, list(os.environ)):
        del os.environ[name]
    os.environ.update(ENVIRONMENT)
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        # As containers have them: some versions of torch ask for a name while they are imported.
        os.environ.setdefault("USER", f"uid-{os.getuid()}")


def serve(link: DaemonLink, idle_exit: float, ready: Callable[[], None], warm_up: WarmUp) -> str:
    """Warm up, call `ready`, and serve until retired; returns why it ended.

    Raises PoolUnavailable when it can't compile.
    """
    with scratch_root() as root:
        return Forkserver(link, root, idle_exit, warm_up).run(ready)


class Forkserver:
    """See the module's docstring; `root` is the scratch directory below which every worker has its own."""

    def __init__(self, link: DaemonLink, root: Path, idle_exit: float, warm_up: WarmUp) -> None:
        self._link = link
        self._warm = warm_up
        self._root = root
        self._idle_exit = idle_exit
        self._patience = None if math.isinf(idle_exit) else idle_exit
        self._workers: dict[int, Worker] = {}
        self._idle: list[Worker] = []
        self._leads: dict[int, Worker] = {}
        self._questions = itertools.count(1)
        self._asking: dict[int, Worker] = {}
        self._forks_ahead = True
        self._look_at = 0.0
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = socket.socketpair()

    def __repr__(self) -> str:
        return f"<Forkserver [pid {os.getpid()} | workers: {len(self._workers)}, {len(self._idle)} of them idle]>"

    def run(self, ready: Callable[[], None]) -> str:
        """Serve until there is a reason not to; returns the reason."""
        try:
            show_as(NAME)
            become_subreaper()
            end_forkservers(self._link.replaces, NAME.decode(), self._link.path)
            self._warm_up()
            ready()
            self._watch()
            while True:
                self._turn()
        except Retired as exc:
            return str(exc)
        finally:
            self._kill_all()

    def _warm_up(self) -> None:
        started = time.monotonic()
        try:
            if lacking := sandbox.lacking(self._link.requires):
                raise RuntimeError(f"this kernel has no {' and no '.join(lacking)}, which the daemon requires")
            occupy()
            backend = self._warm(self._root / "warm-up")
        except Exception as exc:
            reason = f"it can't compile: {type(exc).__name__}: {exc}"
            self._link.post(m.Unfit(reason))
            raise PoolUnavailable(reason) from exc
        shutil.rmtree(self._root / "warm-up", ignore_errors=True)
        self._check_single_thread()
        gc.collect()
        gc.freeze()
        self._link.post(m.Ready(time.monotonic() - started, sandbox.probe(), backend))

    def _watch(self) -> None:
        for end in (self._wake_reader, self._wake_writer):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wake_writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, _retire_on_signal)
        self._selector.register(self._link.socket, selectors.EVENT_READ)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)

    def _turn(self) -> None:
        interest = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._link.sending else 0)
        self._selector.modify(self._link.socket, interest)
        short = self._forks_ahead and len(self._idle) < min(self._link.slots, STANDBY)
        working = len(self._workers) > len(self._idle)
        ready = self._selector.select(0 if short else WATCH_SECONDS if working else self._patience)
        if not ready and short:
            self._fork_ahead()
        elif not ready and not working:
            raise Retired(f"idle for {self._idle_exit:.0f} s")
        for key, events in ready:
            if key.data is not None:
                self._hear(key.data)
            elif key.fileobj is self._link.socket and events & selectors.EVENT_READ:
                for message, segments in self._link.read():
                    self._take(message, segments)
        # Last: who is reaped can't be listened to, and may be among those that were ready.
        if any(key.fileobj is self._wake_reader for key, _ in ready):
            self._drain_wake_ups()
            self._reap()
        if working and time.monotonic() >= self._look_at:
            self._look_after_limits()
        self._link.flush()

    def _take(self, message: m.AnyMessage, segments: tuple[bytes, ...]) -> None:
        match message:
            case m.Spawn():
                self._spawn(message, segments[0])
            case m.Assist(job):
                self._assist(job)
            case m.Kill(job):
                self._stop(job, Failure("cancelled", "nobody waits for it any more"))
            case m.Compiled(number, _, contents):
                self._answered(number, contents, segments)
            case m.Failed(number):
                self._answered(number, None, ())
            case m.Ping():
                self._link.post(m.Pong())
            case m.Retire(reason):
                raise Retired(reason)
            case m.Refusal(failure):
                raise Retired(f"refused: {failure.message}")
            case _:
                raise Retired(f"the daemon sent {type(message).__name__}")

    # ---- workers

    def _of(self, job: int) -> "list[Worker]":
        return [worker for worker in self._workers.values() if worker.job and worker.job.number == job]

    def _fork(self) -> "Worker":
        from compilepool.daemon.worker.process import fork_worker
        from compilepool.daemon.worker.work import work

        self._check_single_thread()
        worker = fork_worker(work)
        self._workers[worker.pid] = worker
        return worker

    def _fork_ahead(self) -> None:
        try:
            self._idle.append(self._fork())
        except OSError:
            # A limit on processes, or memory: whoever needs a worker is told; none is forked in reserve until one ends.
            self._forks_ahead = False

    def _begin(self, job: "Job", *, assisting: bool = False) -> "Worker":
        """Put a worker to a job; OSError if there is none and none can be forked."""
        while self._idle:
            worker = self._idle.pop()
            if worker.begin(job, assisting=assisting):
                return self._listen(worker)
            # It was killed while it waited, and is reaped in its turn.
            worker.job = None
        worker = self._fork()
        # If it is dead already, its job is told how it died.
        worker.begin(job, assisting=assisting)
        return self._listen(worker)

    def _listen(self, worker: "Worker") -> "Worker":
        self._selector.register(worker.control, selectors.EVENT_READ, worker)
        return worker

    def _spawn(self, spawn: m.Spawn, body: bytes) -> None:
        from compilepool.daemon.worker.process import open_job

        job = None
        try:
            job = open_job(spawn, body, self._root)
            self._leads[spawn.job] = self._begin(job)
        except OSError as exc:
            if job is not None:
                job.close()
            failure = Failure("unavailable", f"no worker could be forked: {exc}", spawn.task.name)
            self._link.post(m.JobFailed(spawn.job, failure, m.Cost(0.0, 0.0, 0)))

    def _assist(self, number: int) -> None:
        lead = self._leads.get(number)
        try:
            if lead and lead.job:
                self._begin(lead.job, assisting=True)
                return
        except OSError:
            # Its lead does it all.
            pass
        self._link.post(m.Assisted(number))

    def _hear(self, worker: "Worker") -> None:
        told = worker.hear()
        if told is None:
            self._selector.unregister(worker.control)
        elif worker.job and worker.job.number in self._leads:
            if isinstance(told, int):
                self._link.post(m.Progress(worker.job.number, told))
            else:
                self._ask(worker, worker.job.number, *told)

    def _ask(self, worker: "Worker", job: int, task: m.Lowering, ttir: bytes) -> None:
        from compilepool.daemon.worker.lowering import toolchain_digest

        number = next(self._questions)
        self._asking[number] = worker
        try:
            self._link.post(m.Lower(number, job, task, toolchain_digest()), (ttir,))
        except Refused:
            # Larger than a message may be: it compiles for itself.
            self._answered(number, None, ())

    def _answered(self, number: int, contents: m.Contents | None, segments: tuple[bytes, ...]) -> None:
        from compilepool.daemon.worker.asking import answer

        if worker := self._asking.pop(number, None):
            answer(worker.control, contents, segments)

    def _asks_no_more(self, worker: "Worker") -> None:
        for number in [number for number, asking in self._asking.items() if asking is worker]:
            del self._asking[number]
            self._link.post(m.Cancel(number))

    def _stop(self, job: int, verdict: Failure) -> None:
        for worker in self._of(job):
            worker.stop(verdict)

    def _look_after_limits(self) -> None:
        from compilepool.daemon.worker.limits import exceeded

        now = time.monotonic()
        self._look_at = now + WATCH_SECONDS
        for worker, verdict in list(exceeded(iter(self._workers.values()))):
            assert worker.job is not None
            self._stop(worker.job.number, verdict)
            if verdict.kind == "out-of-memory":
                worker.kill()
        for worker in self._workers.values():
            if worker.kill_at is not None and now >= worker.kill_at:
                worker.kill()

    def _reap(self) -> None:
        from compilepool.daemon.worker.process import has_ended, reap

        for worker in list(self._workers.values()):
            if has_ended(worker):
                with contextlib.suppress(KeyError):
                    self._selector.unregister(worker.control)
                del self._workers[worker.pid]
                self._ended(worker, reap(worker))
        end_orphans(self._workers)

    def _ended(self, worker: "Worker", outcome: "Outcome") -> None:
        job = worker.job
        self._asks_no_more(worker)
        # One that died while it waited would be followed by the next, for ever.
        self._forks_ahead = job is not None
        if job is None:
            if worker in self._idle:
                self._idle.remove(worker)
        elif worker.assisting:
            job.assistants_cpu += outcome.cost.cpu
            self._link.post(m.Assisted(job.number))
        else:
            del self._leads[job.number]
            job.close()
            self._stop(job.number, Failure("cancelled", "its lead has ended"))
            # Before the answer: whoever has it finds nothing left behind.
            job.clean_up()
            self._answer(job, outcome)
            return
        if job is not None and job.number not in self._leads:
            job.clean_up()

    def _answer(self, job: "Job", outcome: "Outcome") -> None:
        cost = msgspec.structs.replace(outcome.cost, cpu=outcome.cost.cpu + job.assistants_cpu)
        if outcome.contents is not None:
            contents = msgspec.structs.replace(outcome.contents, cost=cost)
            try:
                self._link.post(m.JobDone(job.number, contents), outcome.segments)
            except Refused as exc:
                self._link.post(m.JobFailed(job.number, Failure("refused", exc.message, job.kernel), cost))
        elif outcome.failure is not None:
            self._link.post(m.JobFailed(job.number, outcome.failure, cost))

    def _drain_wake_ups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake_reader.recv(4096):
                pass

    def _check_single_thread(self) -> None:
        tasks = os.listdir("/proc/self/task")
        if len(tasks) > 1:
            names = ", ".join(sorted(Path(f"/proc/self/task/{task}/comm").read_text().strip() for task in tasks))
            known = ", ".join(thread.name for thread in threading.enumerate())
            reason = f"it has {len(tasks)} threads ({names}; Python's: {known}), and a fork would copy their locks"
            self._link.post(m.Unfit(reason))
            raise PoolUnavailable(reason)

    def _kill_all(self) -> None:
        from compilepool.daemon.worker.process import reap

        for worker in self._workers.values():
            worker.kill()
            reap(worker)
        for _ in range(_ORPHANS_ROUNDS):
            # Each that is killed leaves its own children to this process.
            if not end_orphans(()):
                break
            time.sleep(_ORPHANS_SECONDS)


def _retire_on_signal(number: int, _frame: object) -> None:
    raise Retired(f"told to by {signal.Signals(number).name}")
