"""The daemon's socket: one daemon for a path, and never a live socket taken away.

A lock file beside the socket is held for the daemon's life, so of many that start at once one goes on. A socket that is
there while nobody holds the lock and nobody listens is the remains of a crash and is replaced.
"""

import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BACKLOG = 1024


class AlreadyRunning(Exception):
    """Another daemon serves this socket."""


class BadSocketPath(Exception):
    """The socket can't be made there; the message says what to do."""


class Listener:
    """A bound, listening, non-blocking socket, and the lock that goes with its path."""

    def __init__(self, path: Path, held: socket.socket, lock: int) -> None:
        self.socket = held
        self._path = path
        self._inode = path.stat().st_ino
        self._lock = lock
        self._open = True

    def close(self) -> None:
        """Listen no more: the path is free for a successor, while who is connected stays connected.

        The lock file stays, since to remove it would race.
        """
        if self._open:
            self._open = False
            self.socket.close()
            if self._path.exists() and self._path.stat().st_ino == self._inode:
                self._path.unlink()
            os.close(self._lock)


@contextmanager
def listening(path: Path) -> Iterator[Listener]:
    """Listen at `path`, mode 0600. Raises AlreadyRunning, BadSocketPath."""
    try:
        _check_directory(path.parent)
    except OSError as exc:
        raise BadSocketPath(
            f"can't listen on {path}: {exc}; set COMPILEPOOL_SOCKET to a path that you may write"
        ) from exc
    lock = _lock(path.with_name(path.name + ".lock"))
    try:
        _remove_stale(path)
        listener = Listener(path, _bind(path), lock)
    except BaseException:
        os.close(lock)
        raise
    try:
        yield listener
    finally:
        listener.close()


def _check_directory(directory: Path) -> None:
    # Under /tmp somebody else may have made it first.
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (os.getuid(), 0):
        raise BadSocketPath(f"{directory} is not a directory of yours; set COMPILEPOOL_SOCKET to a path in one that is")
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise BadSocketPath(f"{directory} may be written by everybody; chmod it or set COMPILEPOOL_SOCKET")


def _lock(path: Path) -> int:
    """The descriptor of the lock file, locked for as long as it is open."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as exc:
        raise BadSocketPath(f"can't lock {path}: {exc}; set COMPILEPOOL_SOCKET to a path that you may write") from exc
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        os.close(descriptor)
        raise AlreadyRunning(
            f"a daemon already serves {path.with_suffix('')} (see `compilepool status`; `compilepool stop` ends it, "
            "and `compilepool serve --replace` takes over from it)"
        ) from exc
    return descriptor


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise BadSocketPath(f"{path} exists and is not a socket; move it away or set COMPILEPOOL_SOCKET")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        except OSError as exc:
            raise AlreadyRunning(f"{path} exists and answers {exc}; remove it if no daemon uses it") from exc
        else:
            raise AlreadyRunning(f"something already listens on {path}")


def _bind(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    old = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as exc:
        listener.close()
        raise BadSocketPath(f"can't listen on {path}: {exc}") from exc
    finally:
        os.umask(old)
    listener.listen(BACKLOG)
    return listener
