"""`compilepool cache`: what the store has of yours, and what becomes of it."""

import fnmatch
import json
import pwd
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import msgspec

from compilepool.cli.common import json_option, running_pool, socket_option
from compilepool.cli.sizes import age, age_text, count_text, size_text
from compilepool.client import Pool
from compilepool.protocol.messages import ObjectInfo, StatusReport

match_option = click.option(
    "--match", "pattern", default="*", help="Only kernels whose name matches, e.g. 'triton_red_*'."
)


@click.group()
def cache() -> None:
    """Look at the daemon's store, and clean it.

    The store keeps itself within its bounds (see `compilepool serve --help`): none of this is needed for that.
    """


@cache.command()
@socket_option
@json_option
def stats(socket: Path | None, as_json: bool) -> None:
    """How much is kept and how often it helps, by architecture and by kernel."""
    with running_pool(socket) as pool:
        report, objects = pool.status(), list(pool.objects())
    click.echo(json.dumps(_stats(report, objects), indent=2) if as_json else _stats_text(report, objects))


def _owner(_context: click.Context, _option: click.Parameter, user: str | None) -> str:
    """As the daemon names them: by number, with the namespace before it."""
    if not user or user == "shared":
        return user or ""
    namespace, slash, name = user.rpartition("/")
    try:
        return f"{namespace}{slash}{name if name.isdigit() else pwd.getpwnam(name).pw_uid}"
    except KeyError:
        raise click.BadParameter(f"this host knows no user {name!r}") from None


user_option = click.option(
    "--user",
    "owner",
    callback=_owner,
    help="Of this user, not of yours: a name or number, NAMESPACE/USER, or 'shared'. For administrators.",
)


@cache.command("list")
@match_option
@user_option
@socket_option
@json_option
def list_command(pattern: str, owner: str, socket: Path | None, as_json: bool) -> None:
    """One line for each kernel: key, target, configs, size, hits, last use."""
    with running_pool(socket) as pool:
        for info in _matching(pool, pattern, owner):
            click.echo(json.dumps(msgspec.to_builtins(info)) if as_json else _line(info))


@cache.command()
@match_option
@click.option("--unused-for", callback=age, help="Only what nobody asked for in so long, e.g. 7d.")
@socket_option
@json_option
def prune(pattern: str, unused_for: float | None, socket: Path | None, as_json: bool) -> None:
    """Remove what matches; what is pinned stays."""
    if pattern == "*" and unused_for is None:
        raise click.UsageError(
            "say what to remove: --match, --unused-for or both (`compilepool cache clear` removes all)"
        )
    with running_pool(socket) as pool:
        before = time.time() - (unused_for or 0.0)
        keys = [info.key for info in _matching(pool, pattern) if not info.pinned and info.used <= before]
        _tell("removed", *pool.manage_objects("remove", keys), as_json=as_json)


@cache.command()
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.option("--pinned", is_flag=True, help="What is pinned, too.")
@user_option
@socket_option
@json_option
def clear(yes: bool, pinned: bool, owner: str, socket: Path | None, as_json: bool) -> None:
    """Remove everything of yours; what is pinned stays."""
    with running_pool(socket) as pool:
        objects = [info for info in pool.objects(owner) if pinned or not info.pinned]
        size = size_text(sum(info.size for info in objects))
        if not yes and not click.confirm(f"Remove {len(objects)} objects, {size}?", err=True):
            sys.exit(1)
        keys = [info.key for info in objects]
        _tell("removed", *pool.manage_objects("remove", keys, owner), as_json=as_json)


@cache.command()
@click.argument("patterns", nargs=-1, required=True)
@socket_option
@json_option
def pin(patterns: tuple[str, ...], socket: Path | None, as_json: bool) -> None:
    """Never evict kernels whose name matches one of PATTERNS, or whose key begins so."""
    with running_pool(socket) as pool:
        _tell("pinned", *pool.manage_objects("pin", _named(pool, patterns)), as_json=as_json)


@cache.command()
@click.argument("patterns", nargs=-1, required=True)
@socket_option
@json_option
def unpin(patterns: tuple[str, ...], socket: Path | None, as_json: bool) -> None:
    """Let them be evicted again."""
    with running_pool(socket) as pool:
        _tell("unpinned", *pool.manage_objects("unpin", _named(pool, patterns)), as_json=as_json)


@cache.command()
@socket_option
@json_option
def verify(socket: Path | None, as_json: bool) -> None:
    """Read everything; what is damaged is removed. Exit status 1 if something was.

    Nothing damaged is ever handed out: every object is checked whenever it is read.
    """
    with running_pool(socket) as pool:
        keys = [info.key for info in pool.objects()]
        damaged, size = pool.manage_objects("verify", keys)
    if as_json:
        click.echo(json.dumps({"read": len(keys), "damaged": damaged, "bytes": size}))
    else:
        click.echo(f"{len(keys)} objects read; {damaged} were damaged and are gone")
    sys.exit(1 if damaged else 0)


def _matching(pool: Pool, pattern: str, owner: str = "") -> list[ObjectInfo]:
    return [info for info in pool.objects(owner) if fnmatch.fnmatchcase(info.kernel, pattern)]


def _named(pool: Pool, patterns: Sequence[str]) -> list[str]:
    def named(info: ObjectInfo) -> bool:
        return any(fnmatch.fnmatchcase(info.kernel, p) or (len(p) >= 6 and info.key.startswith(p)) for p in patterns)

    if keys := [info.key for info in pool.objects() if named(info)]:
        return keys
    raise click.ClickException(f"the store has nothing that {' or '.join(patterns)} names (`compilepool cache list`)")


def _tell(what: str, objects: int, size: int, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({what: objects, "bytes": size}))
    else:
        click.echo(f"{what} {count_text(objects, 'object')}, {size_text(size)}")


def _bytes_by(objects: list[ObjectInfo], name: Callable[[ObjectInfo], str]) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for info in objects:
        sizes[name(info)] += info.size
    return dict(sizes.most_common(10))


def _stats(report: StatusReport, objects: list[ObjectInfo]) -> dict[str, object]:
    return {
        "store": report.store,
        "objects": len(objects),
        "bytes": sum(info.size for info in objects),
        "limit": report.store_limit,
        "trouble": report.store_trouble,
        "hit_rate": _hit_rate(report),
        "pinned": sum(info.pinned for info in objects),
        "damaged": report.counters.get("store_damaged", 0),
        "evicted": report.counters.get("store_evicted", 0),
        "oldest": min((info.created for info in objects), default=None),
        "targets": _bytes_by(objects, _target),
        "kernels": _bytes_by(objects, _family),
        "largest": [msgspec.to_builtins(info) for info in _largest(objects)],
    }


def _stats_text(report: StatusReport, objects: list[ObjectInfo]) -> str:
    rate, counters = _hit_rate(report), report.counters
    kept = size_text(sum(info.size for info in objects))
    lines = {
        "store": report.store + (f" ({report.store_trouble})" if report.store_trouble else ""),
        "kept": f"{len(objects)} objects, {kept}; at most {size_text(report.store_limit)} for all users",
        "hit rate": "no requests yet" if rate is None else f"{100 * rate:.0f} % since the daemon's start",
        "pinned": str(sum(info.pinned for info in objects)),
        "lost": f"{counters.get('store_evicted', 0)} evicted, {counters.get('store_damaged', 0)} damaged",
    }
    text = [f"{name + ':':<11}{value}" for name, value in lines.items()]
    if objects:
        text.append(f"{'oldest:':<11}{age_text(min(info.created for info in objects))}")
        text += _parts("target", objects, _target) + _parts("kernels", objects, _family)
        text += [f"{'largest:':<11}{_line(info)}" for info in _largest(objects)]
    return "\n".join(text)


def _hit_rate(report: StatusReport) -> float | None:
    asked = report.counters.get("requests", 0) - report.counters.get("probes", 0)
    return report.counters.get("answered_store", 0) / asked if asked else None


def _largest(objects: list[ObjectInfo]) -> list[ObjectInfo]:
    return sorted(objects, key=lambda info: -info.size)[:3]


def _target(info: ObjectInfo) -> str:
    return info.target


def _family(info: ObjectInfo) -> str:
    """What torch's names begin with: the kind of kernel."""
    return "_".join(info.kernel.split("_")[:2]) + "*"


def _parts(title: str, objects: list[ObjectInfo], name: Callable[[ObjectInfo], str]) -> list[str]:
    return [f"{title + ':':<11}{part}: {size_text(size)}" for part, size in _bytes_by(objects, name).items()]


def _line(info: ObjectInfo) -> str:
    pinned = ", pinned" if info.pinned else ""
    return (
        f"{info.key[:12]} {info.kernel} {info.target}: {count_text(info.units, 'config')}, {size_text(info.size)}, "
        f"{count_text(info.hits, 'hit')}, used {age_text(info.used)}{pinned}"
    )
