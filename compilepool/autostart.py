"""Gets a link to a daemon, starting the daemon if there is none.

Of many processes that find no daemon at once, the one that holds the start lock runs `compilepool serve`; the others
try to connect until it is there. If that one dies, the lock is free and the next takes over. A daemon that is there but
does not answer is left alone: another could not listen beside it.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from compilepool.link import Link, open_link
from compilepool.options import Options
from compilepool.protocol.errors import PoolUnavailable
from compilepool.protocol.rendezvous import HOST_SOCKET
from compilepool.protocol.toolchain import Toolchain
from compilepool.spawn import CommandFailed, run_command

_POLL_SECONDS = 0.02
# What a client started unasked goes by itself when nobody has needed it for half an hour.
_IDLE_EXIT_SECONDS = "1800"


def get_link(options: Options, toolchain: Toolchain | None, on_start_forkserver: Callable[[Link], None]) -> Link:
    """A link to the running daemon, or to one started now; raises PoolUnavailable with the reason."""
    deadline = time.monotonic() + options.start_timeout
    while True:
        try:
            return open_link(options, toolchain, on_start_forkserver)
        except PoolUnavailable as exc:
            if not options.autostart or not is_absent(exc):
                raise
            _start_or_wait(options, deadline, exc)


def is_absent(error: PoolUnavailable) -> bool:
    """Whether nobody listens there, or who did just died (rather than somebody who does not answer, or refuses)."""
    return isinstance(error.__cause__, FileNotFoundError | ConnectionRefusedError | ConnectionResetError)


def _start_or_wait(options: Options, deadline: float, error: PoolUnavailable) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise PoolUnavailable(f"no daemon came within {options.start_timeout:.0f} s: {error}") from error
    with _start_lock(options.socket) as mine:
        if mine:
            _start(options.socket, left)
        else:
            time.sleep(_POLL_SECONDS)


def _start(socket: Path, timeout: float) -> None:
    if socket == HOST_SOCKET:
        raise PoolUnavailable("this host's daemon does not run: its administrator starts it")
    try:
        command = ("serve", "--detach", "--if-needed", "--idle-exit", _IDLE_EXIT_SECONDS, "--socket", str(socket))
        run_command(*command, timeout=timeout)
    except CommandFailed as exc:
        raise PoolUnavailable(f"could not start a daemon: {exc}") from exc


@contextmanager
def _start_lock(socket: Path) -> Iterator[bool]:
    """Whether this process may start the daemon now."""
    try:
        socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = socket.with_name(socket.name + ".start")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as exc:
        raise PoolUnavailable(f"could not start a daemon: {exc}") from exc
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(descriptor)
