"""`compilepool tuning`: what autotuners have measured, as JSON to be carried elsewhere."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from compilepool.cli.common import json_option, socket_option
from compilepool.client import Pool, connect
from compilepool.protocol.errors import CompilePoolError
from compilepool.triton.timings import BadTimings, Timings, TimingStore, decode_all, directory, encode_all

match_option = click.option("--match", "pattern", default="*", help="Only kernels whose name matches, e.g. 'matmul*'.")


@click.group()
def tuning() -> None:
    """Look at the times that `compilepool.autotune` keeps, and carry them to other hosts.

    They are files of JSON in COMPILEPOOL_TUNING_DIR, or ~/.cache/compilepool/tuning; the daemon has them too. Times
    hold for one kernel, its key values, a model of device with its driver, and a version of Triton.
    """


@tuning.command("list")
@match_option
@json_option
def list_(pattern: str, as_json: bool) -> None:
    """Each kernel and key, with the config that is best."""
    found = _found(pattern)
    if as_json:
        click.echo(encode_all(found).decode())
        return
    for timings in found:
        click.echo(_described(timings))
    if not found:
        click.echo(f"nothing has been tuned here ({directory(os.environ)})")


@tuning.command("export")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@match_option
def export(file: Path, pattern: str) -> None:
    """Write times into FILE."""
    found = _found(pattern)
    try:
        file.write_bytes(encode_all(found))
    except OSError as exc:
        raise click.ClickException(f"can't write {file}: {exc.strerror}") from exc
    click.echo(f"{_counted(found)} written to {file}")


@tuning.command("import")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@socket_option
def import_(file: Path, socket: Path | None) -> None:
    """Take the times in FILE; those that this host has measured itself stay as they are."""
    try:
        found = decode_all(file.read_bytes(), str(file))
    except (BadTimings, OSError) as exc:
        raise click.ClickException(str(exc)) from exc
    with _running(socket) as pool:
        store = TimingStore(directory(os.environ), pool)
        for timings in found:
            store.add(timings.subject, {**timings.milliseconds, **store.load(timings.subject)})
    click.echo(f"{_counted(found)} taken from {file}{'' if pool else ' (no daemon runs: kept on disk alone)'}")


@tuning.command()
@match_option
@click.option("--yes", is_flag=True, help="Don't ask.")
def clear(pattern: str, yes: bool) -> None:
    """Forget times: the next call of a kernel measures anew."""
    found = _found(pattern)
    if found and not yes:
        click.confirm(f"forget {_counted(found)}?", abort=True)
    store = TimingStore(directory(os.environ))
    for timings in found:
        store.forget(timings.subject)
    click.echo(f"{_counted(found)} forgotten; `compilepool cache clear` forgets what the daemon has")


def _found(pattern: str) -> list[Timings]:
    try:
        return list(TimingStore(directory(os.environ)).all(pattern))
    except BadTimings as exc:
        raise click.ClickException(f"{exc}: remove it, and what it is about is measured anew") from exc


def _described(timings: Timings) -> str:
    subject, best = timings.subject, timings.best
    told = f"{timings.milliseconds[best]:.4f} ms  {best}" if best else "none can be launched"
    named = f"{subject.kernel} ({', '.join(subject.key)}) on {subject.device}"
    return f"{named}, {len(timings.milliseconds)} configs: {told}"


def _counted(found: Iterable[Timings]) -> str:
    configs = [len(timings.milliseconds) for timings in found]
    return f"times of {sum(configs)} configs of {len(configs)} kernels and keys"


@contextlib.contextmanager
def _running(socket: Path | None) -> Iterator[Pool | None]:
    """The daemon's pool, if one runs."""
    try:
        pool = connect(socket, autostart=False, fallback=False)
    except CompilePoolError:
        yield None
        return
    with pool:
        yield pool
