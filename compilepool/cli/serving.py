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


def _read_config(context: click.Context, _option: click.Parameter, path: Path | None) -> Path | None:
    """Before the other options: the file has their defaults."""
    if path is None:
        return None
    from compilepool.daemon.settings import BadSettings, read_settings

    try:
        settings = read_settings(path)
    except BadSettings as exc:
        raise click.BadParameter(str(exc)) from exc
    known = {option.name for option in context.command.params} - {"config", "detach", "if_needed", "replace"}
    defaults = {name.replace("-", "_"): value for name, value in settings.serve.items()}
    if unknown := sorted(defaults.keys() - known):
        raise click.BadParameter(f"{path}: [serve] has {', '.join(unknown)}, which is no option of `compilepool serve`")
    context.default_map = defaults
    context.obj = settings
    return path.absolute()


def _namespaces(_context: click.Context, _option: click.Parameter, named: tuple[str, ...]) -> dict[str, Path]:
    from compilepool.daemon.owner import is_namespace

    namespaces = {}
    for text in named:
        name, _, path = text.partition("=")
        if not is_namespace(name) or not path:
            raise click.BadParameter(f"{text!r} is not NAME=PATH, e.g. team-a=/run/compilepool/team-a.sock")
        namespaces[name] = Path(path).absolute()
    return namespaces


def _compile_seconds(_context: click.Context, _option: click.Parameter, seconds: float) -> float:
    if not 1 <= seconds <= _A_DAY:
        raise click.BadParameter(f"{seconds:g} is no number of seconds that a compile could take: 1 to {_A_DAY}")
    return seconds


def _finite(_context: click.Context, _option: click.Parameter, seconds: float | None) -> float | None:
    if seconds is not None and not math.isfinite(seconds):
        raise click.BadParameter(f"{seconds} is no number of seconds")
    return seconds


@click.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_read_config,
    is_eager=True,
    help="TOML file: who is served, and what each may have; without it, only you. SIGHUP reads it again.",
)
@socket_option
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    metavar="NAME=PATH",
    callback=_namespaces,
    help="Listen at PATH too, for users who share nothing with those of other sockets.",
)
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
@click.pass_context
def serve(
    context: click.Context,
    config: Path | None,
    socket: Path | None,
    namespaces: dict[str, Path],
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
    from compilepool.daemon.activation import BadActivation
    from compilepool.daemon.bounds import Bounds
    from compilepool.daemon.config import read_config
    from compilepool.daemon.detach import DidNotStart, run_detached
    from compilepool.daemon.disk import StoreInUse
    from compilepool.daemon.listener import AlreadyRunning, BadSocketPath
    from compilepool.daemon.settings import BadSettings

    chosen = read_config(
        os.environ,
        socket=socket,
        store=store,
        slots=slots,
        timeout=timeout,
        memory=memory << 20 if memory else None,
        bounds=Bounds(store_size, store_objects, user_size, store_free),
        idle_exit=idle_exit,
        namespaces=namespaces,
        settings=context.obj,
        settings_file=config,
    )

    def run(ready: Callable[[], None]) -> None:
        try:
            daemon.serve(chosen, ready, _stop_of(chosen.socket) if replace else None)
        except AlreadyRunning:
            if not if_needed:
                raise
            ready()

    try:
        if detach:
            run_detached(run, daemon_log(chosen.socket))
        else:
            run(lambda: None)
    except (
        AlreadyRunning,
        BadSocketPath,
        BadActivation,
        BadSettings,
        StoreInUse,
        DidNotStart,
        CompilePoolError,
    ) as exc:
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
@click.option("--keep", is_flag=True, help="Stay, however long nobody asks for anything.")
@click.option("--without-torch", is_flag=True, help="For kernels written by hand: ready in a second.")
@click.option("--start-daemon", is_flag=True, help="Start a daemon first if none runs.")
@click.option("--expect", hidden=True, help="Refuse to run as another toolchain than this (JSON).")
def forkserver(
    socket: Path | None,
    idle_exit: float,
    detach: bool,
    keep: bool,
    without_torch: bool,
    start_daemon: bool,
    expect: str | None,
) -> None:
    """Attach a forkserver for this Python's torch and triton, to have it warm before the first client."""
    from compilepool.daemon.worker import main as worker
    from compilepool.protocol.toolchain import Toolchain

    expected = msgspec.json.decode(expect, type=Toolchain) if expect else None
    patience = math.inf if keep else idle_exit
    with_torch = expected.has_torch if expected else not without_torch
    with one_line_errors():
        if start_daemon:
            connect(socket, fallback=False).close()
        if detach:
            worker.start(socket_path(socket), patience, expected, with_torch=with_torch)
        else:
            click.echo(worker.run(socket_path(socket), patience, with_torch=with_torch))


@click.command()
@socket_option
def backend(socket: Path | None) -> None:
    """Attach a backend: it compiles the TTIR of all users of a daemon that serves several.

    Run it as the user that the daemon's configuration names ([sharing] backend), with the Triton that users have;
    torch is not needed. It runs none of their code.
    """
    from compilepool.daemon.worker import main as worker
    from compilepool.daemon.worker.forgetting import forget_what_is_freed

    forget_what_is_freed()
    with one_line_errors():
        click.echo(worker.run(socket_path(socket), math.inf, role="backend", with_torch=False))
