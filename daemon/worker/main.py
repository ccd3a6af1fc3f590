"""Starts a forkserver: in the foreground by hand, or in the background for a client that was asked to."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from compilepool.daemon.detach import DidNotStart, run_detached
from compilepool.daemon.worker import forkserver
from compilepool.daemon.worker.link import Retired, attach
from compilepool.protocol.detect import NoToolchain, detect
from compilepool.protocol.errors import PoolUnavailable
from compilepool.protocol.messages import Role
from compilepool.protocol.rendezvous import forkserver_log
from compilepool.protocol.toolchain import Toolchain


def run(
    socket: Path,
    idle_exit: float,
    ready: Callable[[], None] = lambda: None,
    role: Role = "forkserver",
    *,
    with_torch: bool = True,
) -> str:
    """Attach to the daemon at `socket`, import, call `ready`, and serve; returns why it ended.

    with_torch: for kernels of torch.compile; without it, for those that were written by hand
    Raises PoolUnavailable when it can't attach.
    """
    toolchain = _toolchain(with_torch=with_torch)
    try:
        link = attach(socket, toolchain, role)
    except Retired as exc:
        # As good as ready: there is one.
        ready()
        return str(exc)
    _say(f"attached to {socket} as toolchain {toolchain.fingerprint[:12]}")
    reason = forkserver.serve(link, idle_exit, ready, _warm_up_of(role, with_torch=with_torch))
    _say(f"ended: {reason}")
    return reason


def start(socket: Path, idle_exit: float, expected: Toolchain | None, *, with_torch: bool = True) -> None:
    """Start one in the background, and return when it is ready; `with_torch` as for `run`.

    Raises PoolUnavailable when it does not come so far, with the end of what it said, or would be another toolchain
    than `expected`.
    """
    differences = expected.differences(_toolchain(with_torch=with_torch)) if expected else []
    if differences:
        raise PoolUnavailable(f"the forkserver would be another toolchain than asked for: {'; '.join(differences)}")

    def body(ready: Callable[[], None]) -> None:
        run(socket, idle_exit, ready, with_torch=with_torch)

    try:
        run_detached(body, forkserver_log(socket, os.environ, os.getuid()))
    except DidNotStart as exc:
        raise PoolUnavailable(str(exc)) from exc


def _toolchain(*, with_torch: bool) -> Toolchain:
    forkserver.prepare_environment()
    try:
        return detect(with_torch=with_torch)
    except NoToolchain as exc:
        raise PoolUnavailable(str(exc)) from exc


def _warm_up_of(role: Role, *, with_torch: bool) -> forkserver.WarmUp:
    """Imports what that kind of forkserver needs, when it is called and not before."""

    def warm_up(root: Path) -> str:
        if role == "backend":
            from compilepool.daemon.worker import backend

            return backend.warm_up(root)
        if not with_torch:
            from compilepool.daemon.worker import plain

            return plain.warm_up(root)
        from compilepool.daemon.worker import warmup

        return warmup.warm_up(root)

    return warm_up


def _say(text: str) -> None:
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    sys.stderr.write(f"{now} forkserver={os.getpid()} {text}\n")
    sys.stderr.flush()
