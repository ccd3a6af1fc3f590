"""Who belongs to a worker: its children, theirs, and those that went to the background.

Workers are subreapers, and so is their forkserver (prctl(2), PR_SET_CHILD_SUBREAPER): a process whose parent ends
becomes a child of its worker, whatever session it made for itself, and when the worker ends, of the forkserver. So what
descends from a worker is found below it, and a child of the forkserver that is no worker is what a dead one left.
"""

import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36
_PAGE = resource.getpagesize()
_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Orphans among this process's descendants become its children."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def show_as(name: bytes) -> None:
    """What `ps` and `top` show for this process: at most 15 bytes."""
    _libc.prctl(_PR_SET_NAME, name)


def children(pid: int) -> list[int]:
    """The children of a process; none if it is gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found


def descendants(pid: int) -> Iterator[int]:
    """Everything below a process, children before theirs."""
    for child in children(pid):
        yield child
        yield from descendants(child)


def resident(pid: int) -> int:
    """Bytes of memory that a process has touched, shared ones included; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def memory_of(worker: int, shared: int) -> int:
    """Bytes that a worker and its descendants have, at most, beyond the `shared` ones that it was forked with."""
    return max(0, resident(worker) - shared) + sum(map(resident, descendants(worker)))


def exact_memory_of(worker: int) -> int:
    """The same, where what several processes share counts once: takes milliseconds for each of them."""
    return sum(_proportional(pid) for pid in (worker, *descendants(worker)))


def _proportional(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))


def end_orphans(workers: Container[int]) -> bool:
    """Kill and reap this process's children that are no workers; whether there may be more, of whom we shall hear."""
    orphans = [pid for pid in children(os.getpid()) if pid not in workers]
    for pid in orphans:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, os.WNOHANG)
    return bool(orphans)


def end_forkservers(pids: Iterable[int], name: str, socket: str) -> None:
    """Kill those of these processes that are still forkservers for this socket; a number may be another's by now."""
    for pid in pids:
        with contextlib.suppress(OSError):
            arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if Path(f"/proc/{pid}/comm").read_text().strip() == name and socket in arguments and pid != os.getpid():
                os.kill(pid, signal.SIGKILL)


def kill_those_in(directory: Path) -> None:
    """Kill this user's processes that work below a directory: what is left of workers whose forkserver was killed."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if Path(os.readlink(entry / "cwd")).is_relative_to(directory):
                    os.kill(int(entry.name), signal.SIGKILL)
