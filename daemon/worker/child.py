"""From fork to exit: the process that compiles one kernel, and what its parent keeps of it.

The child has a session of its own (so that everything it starts can be killed with it), dies with the forkserver, and
holds no descriptor but its input, its output and its answer. It answers by writing one frame into an anonymous memory
file, which its parent reads when the child is gone: no pipe that a grandchild could hold open, no partial read. It
leaves by `os._exit`, so that nothing registered in the forkserver runs twice.
"""

import ctypes
import fcntl
import gc
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import msgspec

from compilepool.protocol.contents import DamagedContents, verify
from compilepool.protocol.environment import decides_compiles
from compilepool.protocol.errors import CompilePoolError, Failure, ProtocolError, to_wire
from compilepool.protocol.frames import OPEN_LIMITS, FrameDecoder, encode_frame
from compilepool.protocol.messages import Contents, Cost, Recipe

# The daemon takes no larger frame, and what a kernel prints is only kept for its error message.
ANSWER_BYTES = OPEN_LIMITS.frame
TAIL_BYTES = 2000
_PR_SET_PDEATHSIG = 1
_ANSWER_FD = 3
_HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)
_libc = ctypes.CDLL(None, use_errno=True)

Compile = Callable[[Recipe, bytes, Path, str], tuple[Contents, list[bytes]]]


class _Answer(msgspec.Struct, forbid_unknown_fields=True):
    """What a worker writes: contents with their segments, or a failure."""

    contents: Contents | None = None
    failure: Failure | None = None


_decode_answer = msgspec.msgpack.Decoder(_Answer).decode
_encode_answer = msgspec.msgpack.Encoder().encode


@dataclass(slots=True)
class Child:
    """A running worker, as its parent knows it."""

    job: int
    kernel: str
    pid: int
    scratch: Path
    answer: int
    output: int
    started: float = field(default_factory=time.monotonic)
    killed: bool = False

    def kill(self) -> None:
        """Kill the worker and its process group; what becomes of it is told as usual."""
        self.killed = True
        _kill_group(self.pid)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a worker left: contents with segments, or a failure; and what it cost."""

    job: int
    cost: Cost
    contents: Contents | None = None
    segments: tuple[bytes, ...] = ()
    failure: Failure | None = None


def fork_child(job: int, recipe: Recipe, source: bytes, cache_dir: str, root: Path, compile_kernel: Compile) -> Child:
    """Fork a worker for one job; in the worker, this does not return."""
    scratch = root / f"job-{job}"
    answer, output = (os.memfd_create(f"compilepool-{what}-{job}") for what in ("answer", "output"))
    parent = os.getpid()
    # Until the child has handlers of its own, a signal would run its parent's.
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    try:
        pid = os.fork()
        if pid == 0:
            _live(parent, scratch, answer, output, lambda: compile_kernel(recipe, source, scratch, cache_dir), recipe)
    except OSError:
        os.close(answer)
        os.close(output)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
    return Child(job, recipe.name, pid, scratch, answer, output)


def has_ended(child: Child) -> bool:
    """Whether the worker is a zombie, whose number nobody else can have yet."""
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def reap(child: Child) -> Outcome:
    """Read what a worker that has ended left, and remove every trace of it."""
    # Before its number is free: what it started belongs to its group.
    _kill_group(child.pid)
    _, status, usage = os.wait4(child.pid, 0)
    cost = Cost(
        wall=time.monotonic() - child.started,
        cpu=usage.ru_utime + usage.ru_stime,
        peak_rss=usage.ru_maxrss * 1024,
    )
    try:
        return _read_outcome(child, status, cost)
    finally:
        os.close(child.answer)
        os.close(child.output)
        shutil.rmtree(child.scratch, ignore_errors=True)


def _read_outcome(child: Child, status: int, cost: Cost) -> Outcome:
    if child.killed:
        return Outcome(child.job, cost, failure=Failure("cancelled", "nobody waits for it any more", child.kernel))
    silent = os.fstat(child.answer).st_size == 0
    if silent or not (os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0):
        return Outcome(child.job, cost, failure=_crash(child, status))
    try:
        (frame,) = FrameDecoder(OPEN_LIMITS).feed(_read_all(child.answer))
        answer = _decode_answer(frame.header)
        if answer.contents is not None:
            verify(answer.contents, frame.segments)
            contents = msgspec.structs.replace(answer.contents, cost=cost)
            return Outcome(child.job, cost, contents=contents, segments=frame.segments)
    except (ProtocolError, DamagedContents, ValueError) as exc:
        return Outcome(child.job, cost, failure=_unreadable(child, str(exc)))
    return Outcome(child.job, cost, failure=answer.failure or _unreadable(child, "it is empty"))


def _unreadable(child: Child, why: str) -> Failure:
    return Failure("worker-crashed", f"its worker's answer can't be read: {why}{_tail(child)}", child.kernel)


def _crash(child: Child, status: int) -> Failure:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        how = f"was killed by {signal.Signals(number).name} ({signal.strsignal(number)})"
    else:
        how = f"exited with status {os.WEXITSTATUS(status)} before it answered"
    return Failure("worker-crashed", f"the process that compiled it {how}{_tail(child)}", child.kernel)


def _tail(child: Child) -> str:
    size = os.fstat(child.output).st_size
    text = os.pread(child.output, TAIL_BYTES, max(0, size - TAIL_BYTES)).decode(errors="replace").strip()
    return f"; it printed: {text}" if text else ""


def _read_all(descriptor: int) -> bytes:
    with open(descriptor, "rb", closefd=False) as file:
        file.seek(0)
        return file.read()


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        # The child has not come as far as making its group; as long as it is not reaped, the number is its own.
        os.kill(pid, signal.SIGKILL)


# ---- in the child


def _live(
    parent: int,
    scratch: Path,
    answer: int,
    output: int,
    compile_kernel: Callable[[], tuple[Contents, list[bytes]]],
    recipe: Recipe,
) -> NoReturn:
    status = 1
    try:
        _isolate(parent, answer, output)
        scratch.mkdir(mode=0o700)
        _adopt(scratch, recipe.environment)
        _write_answer(_attempt(compile_kernel))
        # Here rather than when it is reaped: workers do it side by side, their forkserver one after the other.
        shutil.rmtree(scratch, ignore_errors=True)
        status = 0
    except BaseException:  # noqa: BLE001 - a forked child must not return into its parent's code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _isolate(parent: int, answer: int, output: int) -> None:
    os.setsid()
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    signal.set_wakeup_fd(-1)
    for number in _HANDLED:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
    nothing = os.open(os.devnull, os.O_RDONLY)
    # Above the targets first: none of them may overwrite one that is still to be moved.
    kept = [fcntl.fcntl(fd, fcntl.F_DUPFD, _ANSWER_FD + 1) for fd in (nothing, output, output, answer)]
    for target, descriptor in enumerate(kept):
        os.dup2(descriptor, target)
    os.closerange(_ANSWER_FD + 1, os.sysconf("SC_OPEN_MAX"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (ANSWER_BYTES, ANSWER_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _adopt(scratch: Path, environment: dict[str, str]) -> None:
    for name in filter(decides_compiles, list(os.environ)):
        del os.environ[name]
    os.environ.update(environment, TMPDIR=str(scratch))
    tempfile.tempdir = str(scratch)
    os.chdir(scratch)
    gc.disable()


def _attempt(compile_kernel: Callable[[], tuple[Contents, list[bytes]]]) -> tuple[_Answer, list[bytes]]:
    try:
        contents, segments = compile_kernel()
    except CompilePoolError as exc:
        return _Answer(failure=to_wire(exc)), []
    return _Answer(contents=contents), segments


def _write_answer(answered: tuple[_Answer, list[bytes]]) -> None:
    answer, segments = answered
    with open(_ANSWER_FD, "wb", closefd=False) as file:
        file.writelines(encode_frame(_encode_answer(answer), segments))
