"""Where a user's daemon and its clients find each other."""

import os
from collections.abc import Mapping
from pathlib import Path

SOCKET_VARIABLE = "COMPILEPOOL_SOCKET"


def default_socket(environ: Mapping[str, str], uid: int) -> Path:
    """COMPILEPOOL_SOCKET, or compilepool/pool.sock under XDG_RUNTIME_DIR, or pool.sock under /tmp/compilepool-UID."""
    if named := environ.get(SOCKET_VARIABLE):
        return Path(named).absolute()
    if (runtime := environ.get("XDG_RUNTIME_DIR")) and os.path.isdir(runtime):
        return Path(runtime) / "compilepool" / "pool.sock"
    return Path(f"/tmp/compilepool-{uid}") / "pool.sock"


def daemon_log(socket: Path) -> Path:
    """Where a daemon that was started in the background logs."""
    return socket.with_name(socket.name + ".daemon.log")


def forkserver_log(socket: Path) -> Path:
    """Where forkservers that were started in the background log."""
    return socket.with_name(socket.name + ".forkserver.log")
