"""`compilepool status`, `compilepool events` and `compilepool stop`."""

import json
import pwd
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from compilepool.cli.common import json_option, running_pool, socket_option
from compilepool.cli.sizes import count_text, size_text
from compilepool.protocol.messages import Event, StatusReport, UserReport


@click.command()
@socket_option
@json_option
def status(socket: Path | None, as_json: bool) -> None:
    """Show what the daemon does: slots, jobs, forkservers, counters."""
    with running_pool(socket) as pool:
        report = pool.status()
    click.echo(json.dumps(msgspec.to_builtins(report), indent=2) if as_json else _text(report))


@click.command()
@socket_option
@click.option("--after", type=click.IntRange(0, 2**62), default=0, help="Only events after this number.")
@json_option
def events(socket: Path | None, after: int, as_json: bool) -> None:
    """Show what happened lately: who came, what was compiled, what failed and why.

    The daemon keeps the last 2000 events; --json prints one object a line.
    """
    with running_pool(socket) as pool:
        told = pool.events(after)
    for event in told:
        click.echo(json.dumps(msgspec.to_builtins(event)) if as_json else _line(event))


@click.command()
@socket_option
@click.option("--now", is_flag=True, help="Give up what runs instead of finishing it.")
def stop(socket: Path | None, now: bool) -> None:
    """Stop the daemon: finish what runs, hand back what is queued.

    A program that needs one starts another.
    """
    with running_pool(socket) as pool:
        report = pool.status()
        pool.stop(now=now)
    waiting = report.queued + report.waiting_for_forkserver
    click.echo(f"daemon {report.pid} is stopping: {report.running} running, {waiting} waiting")


def _text(report: StatusReport) -> str:
    counters = ", ".join(f"{name} {count}" for name, count in sorted(report.counters.items()) if count) or "none yet"
    lines = {
        "daemon": f"pid {report.pid}, version {report.version}, up {_duration(report.uptime)}, {_mib(report.rss)}"
        + (", stopping" if report.draining else ""),
        "socket": report.socket,
        "store": f"{report.store}: {report.store_objects} objects, {_mib(report.store_bytes)} of at most "
        f"{_mib(report.store_limit)}" + (f" ({report.store_trouble})" if report.store_trouble else ""),
        "slots": f"{report.running} of {report.slots} in use",
        "queued": f"{report.queued}, and {report.waiting_for_forkserver} waiting for a forkserver"
        + (f" ({report.held_back})" if report.held_back else ""),
        "memory": f"{_mib(report.memory_available)} available",
        "clients": str(report.clients),
        "forkservers": "; ".join(report.forkservers) or "none attached (a client starts one when it needs it)",
        "backends": "; ".join(report.backends) or "none (users share nothing)",
        "compiled": f"{report.cpu_seconds:.1f} CPU seconds",
        "counters": counters,
    }
    text = [f"{name + ':':<13}{value}" for name, value in lines.items()]
    if len(report.users) > 1:
        text += ["users:", *(f"  {_user(user)}" for user in report.users)]
    return "\n".join(text)


def _user(user: UserReport) -> str:
    most = f" of at most {user.most}" if user.most is not None else ""
    return (
        f"{_name(user.user)}: {user.running} running{most}, {user.queued + user.waiting_for_forkserver} waiting, "
        f"{user.cpu_seconds:.1f} CPU seconds, {count_text(user.requests, 'request')}, "
        f"{count_text(user.connections, 'connection')}, {size_text(user.store_bytes)} stored"
    )


def _name(user: str) -> str:
    """As the host calls them, where it does: 'alice (1000)'."""
    uid = user.rpartition("/")[2]
    try:
        return f"{pwd.getpwuid(int(uid)).pw_name} ({user})"
    except (KeyError, ValueError):
        return user


def _line(event: Event) -> str:
    when = datetime.fromtimestamp(event.time, tz=UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    fields = " ".join(f"{name}={value if ' ' not in value else repr(value)}" for name, value in event.fields.items())
    return f"{event.number:>6} {when} {event.name:<20} {fields}"


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
