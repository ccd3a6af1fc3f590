"""The daemon's sockets: one daemon for a path, and never a live socket taken away.

Each has a namespace (`owner`). A socket that a service manager holds is its own affair: it is used, and left alone.

A lock file beside the socket is held for the daemon's life, so of many that start at once one goes on. A socket that is
there while nobody holds the lock and nobody listens is the remains of a crash and is replaced.

A successor takes over without a gap: its socket is renamed over the old one, so whoever connects waits in its backlog;
then the old daemon is told to stop, and gives up the lock while it answers what it has.
"""

import fcntl
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from compilepool.daemon.activation import inherited_sockets

BACKLOG = 1024
# A daemon that is told to stop gives up its lock at once; its loop may be busy for a moment.
TAKE_OVER_SECONDS, _POLL_SECONDS = 10.0, 0.02


class AlreadyRunning(Exception):
    """Another daemon serves this socket."""


class BadSocketPath(Exception):
    """The socket can't be made there; the message says what to do."""


class Listener:
    """A bound, listening, non-blocking socket; `lock` goes with its path (None: the path is not ours)."""

    def __init__(self, namespace: str, path: Path, held: socket.socket, lock: int | None) -> None:
        self.namespace = namespace
        self.socket = held
        self.path = path
        self._inode = path.stat().st_ino if lock is not None else 0
        self._lock = lock
        self._open = True

    def close(self) -> None:
        """Listen no more: the path is free for a successor, while who is connected stays connected.

        The lock file stays, since to remove it would race.
        """
        if self._open:
            self._open = False
            self.socket.close()
            if self._lock is not None:
                if self.path.exists() and self.path.stat().st_ino == self._inode:
                    self.path.unlink()
                os.close(self._lock)


def inherited(environ: MutableMapping[str, str]) -> list[Listener]:
    """The sockets of a service manager, the host's own first; none if there is no such."""
    passed = sorted(inherited_sockets(environ), key=lambda named: named[0])
    return [Listener(namespace, Path(held.getsockname()), held, None) for namespace, held in passed]


@contextmanager
def listening(
    paths: Mapping[str, Path], mode: int, stop_other: Callable[[], None] | None = None
) -> Iterator[list[Listener]]:
    """Listen at the path of each namespace; `stop_other` tells the daemon that listens there to stop.

    mode: of the sockets; where it lets others in, directories that are made do too
    Raises AlreadyRunning, BadSocketPath, and what `stop_other` does.
    """
    for path in paths.values():
        try:
            _check_directory(path.parent, 0o755 if mode & 0o066 else 0o700)
        except OSError as exc:
            raise BadSocketPath(
                f"can't listen on {path}: {exc}; set COMPILEPOOL_SOCKET to a path that you may write"
            ) from exc
    listeners: list[Listener] = []
    try:
        if stop_other is None:
            for namespace, path in paths.items():
                listeners.append(_listen(namespace, path, mode))
        else:
            _take_over(paths, mode, stop_other, listeners)
        yield listeners
    finally:
        for listener in listeners:
            listener.close()


def _listen(namespace: str, path: Path, mode: int) -> Listener:
    with ExitStack() as failed:
        lock = _lock(path)
        failed.callback(os.close, lock)
        _remove_stale(path)
        listener = Listener(namespace, path, _bind(path, mode), lock)
        failed.pop_all()
    return listener


def _take_over(paths: Mapping[str, Path], mode: int, stop_other: Callable[[], None], listeners: list[Listener]) -> None:
    with ExitStack() as ended, ExitStack() as failed:
        bound = {}
        for namespace, path in paths.items():
            # Of two successors at once, one.
            ended.callback(os.close, _lock(path, ".replace"))
            new = path.with_name(path.name + ".new")
            new.unlink(missing_ok=True)
            bound[namespace] = failed.enter_context(_bind(new, mode))
            new.rename(path)
            failed.callback(path.unlink, missing_ok=True)
        stop_other()
        for namespace, path in paths.items():
            listeners.append(Listener(namespace, path, bound[namespace], _await_lock(path)))
        failed.pop_all()


def _await_lock(path: Path) -> int:
    deadline = time.monotonic() + TAKE_OVER_SECONDS
    while True:
        try:
            return _lock(path)
        except AlreadyRunning:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)


def _check_directory(directory: Path, mode: int) -> None:
    # Under /tmp somebody else may have made it first.
    directory.mkdir(mode=mode, parents=True, exist_ok=True)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (os.getuid(), 0):
        raise BadSocketPath(f"{directory} is not a directory of yours; set COMPILEPOOL_SOCKET to a path in one that is")
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise BadSocketPath(f"{directory} may be written by everybody; chmod it or set COMPILEPOOL_SOCKET")


def _lock(path: Path, suffix: str = ".lock") -> int:
    """The descriptor of the socket's lock file, locked for as long as it is open."""
    file = path.with_name(path.name + suffix)
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as exc:
        raise BadSocketPath(f"can't lock {file}: {exc}; set COMPILEPOOL_SOCKET to a path that you may write") from exc
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        os.close(descriptor)
        raise AlreadyRunning(
            f"a daemon already serves {path} (see `compilepool status`; `compilepool stop` ends it, "
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


def _bind(path: Path, mode: int) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    old = os.umask(0o777 & ~mode)
    try:
        listener.bind(str(path))
    except OSError as exc:
        listener.close()
        raise BadSocketPath(f"can't listen on {path}: {exc}") from exc
    finally:
        os.umask(old)
    listener.listen(BACKLOG)
    return listener
