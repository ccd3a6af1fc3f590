"""From fork to exit: the process that does one job, or assists in one.

    forked --> waits at its control socket --> begins a job --> writes its answer --> exits

The child has a session of its own (so that everything it starts can be killed with it), is where its orphans go, dies
with the forkserver, and holds no descriptor but its input, its output, its answer, its control socket and its note. It
leaves by `os._exit`, so that nothing registered in the forkserver runs twice.
"""

import contextlib
import ctypes
import fcntl
import functools
import gc
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec

from compilepool.daemon.worker import note, sandbox
from compilepool.daemon.worker.asking import ask_over
from compilepool.daemon.worker.board import Board
from compilepool.daemon.worker.exchange import ASSISTANT, CLAIMS, Answer, Order, decode_order, read, write
from compilepool.daemon.worker.family import become_subreaper, show_as
from compilepool.daemon.worker.forgetting import forget_no_more
from compilepool.daemon.worker.note import Step
from compilepool.protocol.environment import decides_compiles
from compilepool.protocol.errors import CompilePoolError, Failure, to_wire
from compilepool.protocol.frames import OPEN_LIMITS
from compilepool.protocol.messages import Call, Contents, Lowering

# A compiler's message is a line or a traceback; a header takes a megabyte.
MESSAGE_CHARACTERS = 16 << 10
# One that was cut says so, and is not cut again.
_NOTICE = 100
# The daemon takes no larger frame.
ANSWER_BYTES = OPEN_LIMITS.frame
HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)
IDLE_NAME, BUSY_NAME = b"cpool-idle", b"cpool-worker"
_PR_SET_PDEATHSIG = 1
_ANSWER_FD, _CONTROL_FD, _NOTE_FD = 3, 4, 5
_libc = ctypes.CDLL(None, use_errno=True)

# Asks for what comes after TTIR; see `lowering`.
Ask = Callable[[Lowering, bytes], tuple[Contents, tuple[bytes, ...]] | None]
# Does the order, as lead (contents and segments to answer with) or as assistant (None).
Work = Callable[[Order, bytes, Board, bool, Ask], tuple[Contents, list[bytes]] | None]


@dataclass(frozen=True, slots=True)
class Ends:
    """The worker's ends of what it shares with its forkserver, as descriptors; see `exchange`."""

    control: int
    answer: int
    output: int
    note: int


def live(parent: int, ends: Ends, work: Work) -> NoReturn:
    """Wait for a job, do it, answer and exit."""
    status = 1
    try:
        _isolate(parent, ends)
        status = _serve(work)
    except BaseException:  # noqa: BLE001 - a forked child must not return into its parent's code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _serve(work: Work) -> int:
    control = socket.socket(fileno=_CONTROL_FD)
    role, descriptors, _, _ = socket.recv_fds(control, 64, 2, socket.MSG_CMSG_CLOEXEC)
    if not role:
        return 0
    order_file, board_file = descriptors
    frame = read(order_file)
    os.close(order_file)
    order, assisting = decode_order(frame.header), role == ASSISTANT
    scratch = Path(order.scratch)
    show_as(BUSY_NAME)
    scratch.mkdir(mode=0o700, exist_ok=assisting)
    _adopt(scratch, {} if isinstance(order.task, Lowering) else order.task.environment)
    _lock_in(order)

    def tell(unclaimed: int) -> None:
        control.send(CLAIMS.pack(unclaimed))

    board = Board(board_file, tell)
    ask = functools.partial(ask_over, control)
    answer = _attempt(lambda: work(order, frame.segments[0], board, assisting, ask))
    if not assisting:
        note.enter(Step.ANSWERING)
        write(_ANSWER_FD, *answer)
        # Here rather than when it is reaped: workers do it side by side, their forkserver one after the other.
        with contextlib.suppress(RecursionError):
            shutil.rmtree(scratch, ignore_errors=True)
    return 0


def _isolate(parent: int, ends: Ends) -> None:
    os.setsid()
    become_subreaper()
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    show_as(IDLE_NAME)
    signal.set_wakeup_fd(-1)
    for number in HANDLED:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    nothing = os.open(os.devnull, os.O_RDONLY)
    # Above the targets first: none of them may overwrite one that is still to be moved.
    moved = (nothing, ends.output, ends.output, ends.answer, ends.control, ends.note)
    kept = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, _NOTE_FD + 1) for descriptor in moved]
    for target, descriptor in enumerate(kept):
        os.dup2(descriptor, target, inheritable=target < _ANSWER_FD)
    os.closerange(_NOTE_FD + 1, os.sysconf("SC_OPEN_MAX"))
    note.keep_in(_NOTE_FD)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ANSWER_BYTES, ANSWER_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _adopt(scratch: Path, environment: dict[str, str]) -> None:
    for name in filter(decides_compiles, list(os.environ)):
        del os.environ[name]
    os.environ.update(environment, TMPDIR=str(scratch))
    tempfile.tempdir = str(scratch)
    os.chdir(scratch)
    gc.disable()


def _lock_in(order: Order) -> None:
    """From here on a kernel's source can do little; a callable is the program's own code, and does what it does."""
    sandbox.give_up_privileges()
    if isinstance(order.task, Lowering):
        forget_no_more()
    if not isinstance(order.task, Call):
        sandbox.enter(Path(order.scratch), for_all=isinstance(order.task, Lowering))


def sendable(failure: Failure) -> Failure:
    """With a message that can be encoded, and its end only, where that is what a kernel made endless."""
    message = failure.message.encode(errors="backslashreplace").decode()
    cut = len(message) - MESSAGE_CHARACTERS
    return msgspec.structs.replace(
        failure, message=f"[{cut} characters] ...{message[cut:]}" if cut > _NOTICE else message
    )


def _attempt(work: Callable[[], tuple[Contents, list[bytes]] | None]) -> tuple[Answer, list[bytes]]:
    try:
        contents, segments = work() or (None, [])
    except CompilePoolError as exc:
        return Answer(failure=sendable(to_wire(exc))), []
    return Answer(contents=contents), segments
