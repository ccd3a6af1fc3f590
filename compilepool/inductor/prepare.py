"""Has a forkserver started for this program's Python, before anything is to be compiled, once for all ranks.

The program pays for one `posix_spawn`: the command starts a daemon if there is none, goes to the background and becomes
the forkserver. It inherits a lock that says so for as long as it lives: seven of eight ranks find it held and are done.
Without torch's imports beside it this must stay cheap, so nothing is imported here that the interpreter has not.
"""

import fcntl
import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from compilepool.bootstrap import command
from compilepool.protocol.rendezvous import default_socket

# What a program tells its own processes to leave alone.
_OFF = {"COMPILEPOOL": "0"}
_SHELL = "/bin/sh"


def start_forkserver(environ: Mapping[str, str]) -> bool:
    """Start one in the background; False if one that was started this way is there, or none can be started.

    Whatever goes wrong is found again, and said, when the first kernel is to be compiled.
    """
    socket = default_socket(environ, os.getuid())
    try:
        lock = _lock(socket)
    except OSError:
        return False
    try:
        # Output to nowhere: the forkserver has a log, and this program's terminal is its own.
        streams = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in range(3)]
        arguments = command("forkserver", "--detach", "--start-daemon", "--socket", str(socket))
        # By way of a shell that goes at once: a child of this program would stay as a zombie, or surprise its `wait`.
        shell = os.posix_spawn(
            _SHELL, [_SHELL, "-c", '"$@" &', _SHELL, *arguments], {**environ, **_OFF}, file_actions=streams
        )
        os.waitpid(shell, 0)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True


def _lock(socket: Path) -> int:
    """A descriptor that holds the lock and is inherited; BlockingIOError if another process holds it."""
    socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    python = hashlib.sha256(sys.executable.encode()).hexdigest()[:12]
    path = socket.with_name(f"{socket.name}.forkserver-{python}")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.set_inheritable(descriptor, True)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
