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


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A bound, listening, non-blocking socket at `path`, mode 0600, removed afterwards.

    The lock file stays, since to remove it would race. Raises AlreadyRunning, BadSocketPath.
    """
    try:
        _check_directory(path.parent)
    except OSError as exc:
        raise BadSocketPath(
            f"can't listen on {path}: {exc}; set COMPILEPOOL_SOCKET to a path that you may write"
        ) from exc
    with _lock(path.with_name(path.name + ".lock")):
        _remove_stale(path)
        listener = _bind(path)
        inode = path.stat().st_ino
        try:
            yield listener
        finally:
            listener.close()
            if path.exists() and path.stat().st_ino == inode:
                path.unlink()


def _check_directory(directory: Path) -> None:
    # Under /tmp somebody else may have made it first.
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (os.getuid(), 0):
        raise BadSocketPath(f"{directory} is not a directory of yours; set COMPILEPOOL_SOCKET to a path in one that is")
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise BadSocketPath(f"{directory} may be written by everybody; chmod it or set COMPILEPOOL_SOCKET")


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as exc:
        raise BadSocketPath(f"can't lock {path}: {exc}; set COMPILEPOOL_SOCKET to a path that you may write") from exc
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        raise AlreadyRunning(
            f"a daemon already serves {path.with_suffix('')} (see `compilepool status`; `compilepool stop` ends it)"
        ) from exc
    else:
        yield
    finally:
        os.close(descriptor)


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
