"""A worker as its forkserver knows it: forked ahead, put to a job, stopped or waited for, and read.

A fork costs 5 to 9 ms and a forkserver forks one after the other, so workers are forked before there is work for them:
they wait at their control socket (`child`). A job has one lead, which answers for it, and may have assistants, which
compile some of its configs and leave them in the directory that they share.
"""

import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from compilepool.daemon.worker import child
from compilepool.daemon.worker.asking import LOWER, MESSAGE_BYTES, read_question
from compilepool.daemon.worker.exchange import ASSISTANT, CLAIMS, LEAD, Order, decode_answer, read, write
from compilepool.daemon.worker.files import remove_tree
from compilepool.daemon.worker.note import Note, read_note
from compilepool.protocol.contents import DamagedContents, verify
from compilepool.protocol.errors import Failure, ProtocolError
from compilepool.protocol.messages import Contents, Cost, Limits, Lowering, Spawn

# What a kernel prints is only kept for its error message.
TAIL_BYTES = 2000
# How long a worker that is stopped may take to end by itself: time for ptxas to remove its temporary files.
TERM_SECONDS = 2.0


@dataclass(slots=True)
class Job:
    """A job of this forkserver, and what its workers share."""

    number: int
    kernel: str
    scratch: Path
    limits: Limits
    order: int
    board: int
    assistants_cpu: float = 0.0

    def close(self) -> None:
        """Nobody is put to it any more."""
        os.close(self.order)
        os.close(self.board)

    def clean_up(self) -> None:
        """Remove what its workers left; its lead has removed most."""
        remove_tree(self.scratch)


@dataclass(slots=True)
class Worker:
    """A forked process: idle, or at work on `job`.

    verdict: why it was stopped
    kill_at: when it is killed, if being told to end has not helped
    """

    pid: int
    control: socket.socket
    answer: int
    output: int
    note: int
    job: Job | None = None
    assisting: bool = False
    started: float = 0.0
    oom_kills: int = 0
    verdict: Failure | None = None
    kill_at: float | None = None

    def begin(self, job: Job, *, assisting: bool = False) -> bool:
        """Put it to a job; whether it was there to be told."""
        self.job, self.assisting, self.started = job, assisting, time.monotonic()
        self.oom_kills = _oom_kills()
        try:
            socket.send_fds(self.control, [ASSISTANT if assisting else LEAD], [job.order, job.board])
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def hear(self) -> int | tuple[Lowering, bytes] | None:
        """What it says on its control socket: so many configs are unclaimed, or what it asks; None: no more."""
        descriptors: list[int] = []
        try:
            told, descriptors, _, _ = socket.recv_fds(self.control, MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
            if told == LOWER and descriptors:
                return read_question(descriptors[0])
        except (OSError, ProtocolError, ValueError, IndexError):
            return None
        finally:
            # Also of what is no question: it would stay open here for good.
            for descriptor in descriptors:
                os.close(descriptor)
        return int(CLAIMS.unpack(told)[0]) if len(told) == CLAIMS.size else None

    def where(self) -> Note:
        """What it does, or did last."""
        return read_note(self.note)

    def printed(self) -> int:
        """Bytes that it has printed."""
        return os.fstat(self.output).st_size

    def stop(self, verdict: Failure) -> None:
        """Tell it and its process group to end, and kill them when they don't; the first verdict counts."""
        if self.verdict is None:
            self.verdict = verdict
            self.kill_at = time.monotonic() + TERM_SECONDS
            _signal_group(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill it and its process group."""
        self.kill_at = None
        _signal_group(self.pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a worker left: contents with segments, or a failure; and what it cost."""

    cost: Cost
    contents: Contents | None = None
    segments: tuple[bytes, ...] = ()
    failure: Failure | None = None


def open_job(spawn: Spawn, body: bytes, root: Path) -> Job:
    """Write the order for a job, whose scratch directory will be below `root`."""
    order, board = (os.memfd_create(f"compilepool-{what}-{spawn.job}") for what in ("order", "board"))
    job = Job(spawn.job, spawn.task.name, root / f"job-{spawn.job}", spawn.limits, order, board)
    write(order, Order(spawn.job, spawn.task, spawn.cache_dir, str(job.scratch), spawn.backends), (body,))
    return job


def fork_worker(work: child.Work) -> Worker:
    """Fork a worker that waits to be put to a job; in the worker, this does not return."""
    answer, output, note = (os.memfd_create(f"compilepool-{what}") for what in ("answer", "output", "note"))
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    # Until the child has handlers of its own, a signal would run its parent's.
    signal.pthread_sigmask(signal.SIG_BLOCK, child.HANDLED)
    try:
        pid = os.fork()
        if pid == 0:
            child.live(parent, child.Ends(its.fileno(), answer, output, note), work)
    except OSError:
        for descriptor in (answer, output, note):
            os.close(descriptor)
        ours.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, child.HANDLED)
        its.close()
    ours.setblocking(False)
    return Worker(pid, ours, answer, output, note)


def has_ended(worker: Worker) -> bool:
    """Whether the worker is a zombie, whose number nobody else can have yet."""
    return os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def reap(worker: Worker) -> Outcome:
    """Read what a worker that has ended left, and release what was held for it."""
    # Before its number is free: what it started belongs to its group.
    _signal_group(worker.pid, signal.SIGKILL)
    _, status, usage = os.wait4(worker.pid, 0)
    cost = Cost(
        wall=time.monotonic() - worker.started,
        cpu=usage.ru_utime + usage.ru_stime,
        peak_rss=usage.ru_maxrss * 1024,
    )
    try:
        return _read_outcome(worker, status, cost)
    finally:
        for descriptor in (worker.answer, worker.output, worker.note):
            os.close(descriptor)
        worker.control.close()


def _read_outcome(worker: Worker, status: int, cost: Cost) -> Outcome:
    kernel = worker.job.kernel if worker.job else ""

    def failed(message: str) -> Outcome:
        return Outcome(cost, failure=Failure("worker-crashed", f"{message}{_tail(worker)}", kernel))

    if worker.verdict is not None:
        return Outcome(cost, failure=worker.verdict)
    if _killed_for_memory(worker, status):
        said = f"the kernel's out-of-memory killer ended the process that compiled it ({worker.where()})"
        return Outcome(cost, failure=Failure("out-of-memory", said, kernel))
    silent = os.fstat(worker.answer).st_size == 0
    if silent or not (os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0):
        return failed(f"the process that compiled it {_death(status)} ({worker.where()})")
    try:
        frame = read(worker.answer)
        answer = decode_answer(frame.header)
        if answer.failure is not None:
            # A worker that got out of hand has written it.
            return Outcome(cost, failure=child.sendable(msgspec.structs.replace(answer.failure, kernel=kernel)))
        if answer.contents is None:
            return failed("its worker's answer is empty")
        verify(answer.contents, frame.segments)
    except (ProtocolError, DamagedContents, ValueError) as exc:
        return failed(f"its worker's answer can't be read: {exc}")
    return Outcome(cost, msgspec.structs.replace(answer.contents, cost=cost), frame.segments)


def _death(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"was killed by {signal.Signals(number).name} ({signal.strsignal(number)})"
    return f"exited with status {os.WEXITSTATUS(status)} before it answered"


def _killed_for_memory(worker: Worker, status: int) -> bool:
    """Whether it was killed while the kernel was killing for want of memory: it does not say whom."""
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL and _oom_kills() > worker.oom_kills


def _oom_kills() -> int:
    try:
        counters = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    except OSError:
        return 0
    return int(counters.get("oom_kill", 0))


def _tail(worker: Worker) -> str:
    size = worker.printed()
    text = os.pread(worker.output, TAIL_BYTES, max(0, size - TAIL_BYTES)).decode(errors="replace").strip()
    return f"; it printed: {text}" if text else ""


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        # The child has not come as far as making its group; as long as it is not reaped, the number is its own.
        os.kill(pid, number)
