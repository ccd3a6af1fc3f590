"""Where daemons, clients and forkservers find each other, and whom a client lets answer it.

A client unpickles what its daemon hands it, so it must not be lured to a socket of somebody else: where the directory
belongs to another user, or may be written by others, whoever listens there may be anybody.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

SOCKET_VARIABLE = "COMPILEPOOL_SOCKET"
# Of the daemon that serves all users of a host: made by its service manager, in a directory of root's.
HOST_SOCKET = Path("/run/compilepool/pool.sock")


class UntrustedSocket(Exception):
    """Somebody else may listen there; the message says who and what to do."""


def default_socket(environ: Mapping[str, str], uid: int, host: Path = HOST_SOCKET) -> Path:
    """Where a program asks: COMPILEPOOL_SOCKET, or the host's daemon where this user may use it, or the user's own."""
    if not environ.get(SOCKET_VARIABLE) and os.access(host, os.W_OK):
        return host
    return own_socket(environ, uid)


def own_socket(environ: Mapping[str, str], uid: int) -> Path:
    """COMPILEPOOL_SOCKET, or compilepool/pool.sock under XDG_RUNTIME_DIR, or pool.sock under /tmp/compilepool-UID."""
    if named := environ.get(SOCKET_VARIABLE):
        return Path(named).absolute()
    return _own_directory(environ, uid) / "pool.sock"


def daemon_log(socket: Path) -> Path:
    """Where a daemon that was started in the background logs."""
    return socket.with_name(socket.name + ".daemon.log")


def forkserver_log(socket: Path, environ: Mapping[str, str], uid: int) -> Path:
    """Where forkservers that were started in the background log: beside the socket, or where only the user writes."""
    folder = socket.parent if os.access(socket.parent, os.W_OK) else _own_directory(environ, uid)
    return folder / f"{socket.name}.forkserver.log"


def check_trust(socket: Path, uid: int) -> None:
    """Raise UntrustedSocket unless only this user or root decides who listens there; FileNotFoundError if nobody."""
    folder = socket.parent.stat()
    sticky = bool(folder.st_mode & stat.S_ISVTX)
    if folder.st_uid not in (uid, 0) or (folder.st_mode & stat.S_IWOTH and not sticky):
        whose = f"belongs to uid {folder.st_uid}" if folder.st_uid not in (uid, 0) else "may be written by everybody"
        raise UntrustedSocket(f"{socket.parent} {whose}, who could listen there: use a directory of yours or of root's")
    if folder.st_mode & stat.S_IWOTH and socket.stat().st_uid not in (uid, 0):
        raise UntrustedSocket(f"{socket} belongs to uid {socket.stat().st_uid}: set COMPILEPOOL_SOCKET to one of yours")


def _own_directory(environ: Mapping[str, str], uid: int) -> Path:
    if (runtime := environ.get("XDG_RUNTIME_DIR")) and os.path.isdir(runtime):
        return Path(runtime) / "compilepool"
    return Path(f"/tmp/compilepool-{uid}")
