"""A forkserver whose workers do what a plan says, at the step that it names: run as a program by `test_matrix`.

    faulty.py SOCKET PLAN

PLAN is a file that holds "action step"; the first worker that comes to the step takes it away and acts. The steps are
those that a worker notes of itself (`note.Step`), and "fork": all that comes before it takes its job.
"""

import mmap
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from compilepool.daemon.worker import child, main, note

CHUNK = 16 << 20


class Unpicklable(Exception):
    """Can neither be pickled nor be asked what it says."""

    def __reduce__(self) -> NoReturn:
        raise TypeError("it can't be pickled")

    def __str__(self) -> str:
        raise RuntimeError("it has no words")


def leave() -> None:
    sys.exit(3)


def leave_at_once() -> None:
    os._exit(7)


def segfault() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def be_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def ignore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()


def raise_unpicklable() -> None:
    raise Unpicklable


def loop() -> None:
    while True:
        pass


def print_for_ever() -> None:
    while True:
        try:
            os.write(1, b"and so on " * 10000)
        except OSError:
            continue


def grow() -> None:
    held = []
    while True:
        held.append(b"x" * CHUNK)


def grow_in_a_child() -> None:
    code = f"held = []\nwhile True: held.append(b'x' * {CHUNK})"
    subprocess.run([sys.executable, "-c", code], check=False)


def leave_a_daemon() -> None:
    """A process in a session of its own, whose parent has ended."""
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            os.execvp("sleep", ["sleep", "100000"])
        os._exit(0)
    os.wait()


ACTIONS: dict[str, Callable[[], None]] = {
    action.__name__: action
    for action in (
        leave,
        leave_at_once,
        segfault,
        be_killed,
        stop,
        ignore_sigterm,
        raise_unpicklable,
        loop,
        print_for_ever,
        grow,
        grow_in_a_child,
        leave_a_daemon,
    )
}


def act_in_workers(plan: Path) -> None:
    """Have every worker look at the plan; the number of the last that was taken is kept beside it.

    In memory that they share: a worker writes no files.
    """
    forkserver = os.getpid()
    serve, enter = child._serve, note.enter
    with plan.with_name("taken").open("r+b") as file:
        taken = mmap.mmap(file.fileno(), 0)

    def act(step: str) -> None:
        if os.getpid() == forkserver or not plan.exists():
            return
        number, action, where = plan.read_text().split(maxsplit=2)
        if where == step and taken[0] != int(number):
            taken[0] = int(number)
            ACTIONS[action]()

    def act_and_serve(work: child.Work) -> int:
        # It has a job, though it does not know: before, it is nobody's.
        select.select([child._CONTROL_FD], [], [])
        act("fork")
        return serve(work)

    def enter_and_act(step: note.Step, config: str | None = None) -> None:
        enter(step, config)
        act(step.value)

    child._serve, note.enter = act_and_serve, enter_and_act


if __name__ == "__main__":
    act_in_workers(Path(sys.argv[2]))
    main.run(Path(sys.argv[1]), 900.0)
