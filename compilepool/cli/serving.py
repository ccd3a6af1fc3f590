"""`compilepool serve` and `compilepool forkserver`: the pool's own processes."""

import math
import os
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from compilepool.autostart import is_absent
from compilepool.cli.common import one_line_errors, socket_option, socket_path
from compilepool.cli.sizes import size
from compilepool.client import connect
from compilepool.protocol.errors import CompilePoolError, PoolUnavailable
from compilepool.protocol.rendezvous import daemon_log

_A_DAY = 86400


def _compile_seconds(_context: click.Context, _option: click.Parameter, seconds: float) -> float:
    if not 1 <= seconds <= _A_DAY:
        raise click.BadParameter(f"{seconds:g} is no number of seconds that a compile could take: 1 to {_A_DAY}")
    return seconds


def _finite(_context: click.Context, _option: click.Parameter, seconds: float | None) -> float | None:
    if seconds is not None and not math.isfinite(seconds):
        raise click.BadParameter(f"{seconds} is no number of seconds")
    return seconds


@click.command()
@socket_option
@click.option(
    "--store",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of the results. [default: COMPILEPOOL_STORE, or ~/.cache/compilepool]",
)
@click.option(
    "--slots",
    type=click.IntRange(1, 4096),
    help="Workers at once. [default: the cores this process may use, cgroups included]",
)
@click.option(
    "--timeout",
    type=float,
    callback=_compile_seconds,
    default=600.0,
    show_default=True,
    help="Seconds that one kernel may compile; a request may ask for less.",
)
@click.option(
    "--memory",
    type=click.IntRange(256, 1 << 24),
    help="MiB that one worker with its children may take. [default: a quarter of this host's, or of the cgroup's]",
)
@click.option("--store-size", callback=size, default="10GiB", show_default=True, help="Keep at most so much.")
@click.option(
    "--store-objects", type=click.IntRange(1), default=500_000, show_default=True, help="And so many kernels."
)
@click.option("--store-free", callback=size, default="1GiB", show_default=True, help="Leave so much of the disk free.")
@click.option("--user-size", callback=size, help="Keep at most so much of one user. [default: all of it]")
@click.option(
    "--idle-exit",
    type=click.FloatRange(0),
    callback=_finite,
    help="Exit after so many seconds without clients. [default: never]",
)
@click.option("--detach", is_flag=True, help="Go to the background, and return when the socket listens.")
@click.option("--if-needed", is_flag=True, help="Succeed when a daemon runs already.")
@click.option("--replace", is_flag=True, help="Take over from the daemon that runs: an upgrade without a gap.")
def serve(
    socket: Path | None,
    store: Path | None,
    slots: int | None,
    timeout: float,
    memory: int | None,
    store_size: int,
    store_objects: int,
    store_free: int,
    user_size: int | None,
    idle_exit: float | None,
    detach: bool,
    if_needed: bool,
    replace: bool,
) -> None:
    """Run the daemon. SIGTERM finishes what runs and exits; a second one gives it up."""
    from compilepool.daemon import main as daemon
    from compilepool.daemon.config import read_config
    from compilepool.daemon.detach import DidNotStart, run_detached
    from compilepool.daemon.disk import StoreInUse
    from compilepool.daemon.listener import AlreadyRunning, BadSocketPath
    from compilepool.daemon.store import Bounds

    config = read_config(
        os.environ,
        socket=socket,
        store=store,
        slots=slots,
        timeout=timeout,
        memory=memory << 20 if memory else None,
        bounds=Bounds(store_size, store_objects, user_size, store_free),
        idle_exit=idle_exit,
    )

    def run(ready: Callable[[], None]) -> None:
        try:
            daemon.serve(config, ready, _stop_of(config.socket) if replace else None)
        except AlreadyRunning:
            if not if_needed:
                raise
            ready()

    try:
        if detach:
            run_detached(run, daemon_log(config.socket))
        else:
            run(lambda: None)
    except (AlreadyRunning, BadSocketPath, StoreInUse, DidNotStart, CompilePoolError) as exc:
        raise click.ClickException(str(exc)) from exc


def _stop_of(socket: Path) -> Callable[[], None]:
    """Tells the daemon that is at the socket now to stop, wherever its socket is by then."""
    try:
        return connect(socket, autostart=False, fallback=False).stop
    except PoolUnavailable as exc:
        if is_absent(exc):
            return lambda: None
        raise


@click.command()
@socket_option
@click.option(
    "--idle-exit", type=click.FloatRange(0), callback=_finite, default=900.0, show_default=True, help="Seconds."
)
@click.option("--detach", is_flag=True, help="Go to the background, and return when it is ready.")
@click.option("--start-daemon", is_flag=True, help="Start a daemon first if none runs.")
@click.option("--expect", hidden=True, help="Refuse to run as another toolchain than this (JSON).")
def forkserver(socket: Path | None, idle_exit: float, detach: bool, start_daemon: bool, expect: str | None) -> None:
    """Attach a forkserver for this Python's torch and triton, to have it warm before the first client."""
    from compilepool.daemon.worker import main as worker
    from compilepool.protocol.toolchain import Toolchain

    expected = msgspec.json.decode(expect, type=Toolchain) if expect else None
    with one_line_errors():
        if start_daemon:
            connect(socket, fallback=False).close()
        if detach:
            worker.start(socket_path(socket), idle_exit, expected)
        else:
            click.echo(worker.run(socket_path(socket), idle_exit))
