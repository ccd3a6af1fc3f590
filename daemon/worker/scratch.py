"""A forkserver's scratch directory, which goes with it: now, or when the next one starts.

A forkserver that is killed can't clean up, and what its workers started goes on. So each holds a lock in its directory
for as long as it lives, and one that starts removes those that nobody holds, and ends who works there (by the lock and
not by a process number: containers may share /tmp).
"""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from compilepool.daemon.worker.family import kill_those_in
from compilepool.daemon.worker.files import remove_tree

_PREFIX = "compilepool-scratch-"
_LOCK = ".lock"


@contextmanager
def scratch_root() -> Iterator[Path]:
    """A directory of this process's own, mode 0700; what dead forkservers of this user left is removed first."""
    _remove_those_of_the_dead()
    # Under another name until it is locked: no other may take it for a dead one's.
    made = Path(tempfile.mkdtemp(prefix="compilepool-new-"))
    lock = os.open(made / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    root = made.rename(made.with_name(made.name.replace("compilepool-new-", _PREFIX)))
    try:
        yield root
    finally:
        remove_tree(root)
        os.close(lock)
        # One that was killed a moment ago may not have been quite dead when this one came.
        _remove_those_of_the_dead()


def _remove_those_of_the_dead() -> None:
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        _remove_if_dead(left)


def _remove_if_dead(directory: Path) -> None:
    try:
        if directory.lstat().st_uid != os.getuid():
            return
        lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    else:
        kill_those_in(directory)
        remove_tree(directory)
    finally:
        os.close(lock)
