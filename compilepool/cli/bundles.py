"""`compilepool bundle`: results in one file, for other hosts with the same toolchain."""

import fnmatch
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec

from compilepool import request_log
from compilepool.bundle.format import BadBundle, BundleReader, Described, Manifest, Result, write_bundle
from compilepool.bundle.toolchain import detect_portable
from compilepool.cli.cache import match_option
from compilepool.cli.common import json_option, running_pool, socket_option
from compilepool.cli.progress import progress
from compilepool.cli.sizes import age, count_text, size_text
from compilepool.client import Pool, connect
from compilepool.emit import emit
from compilepool.protocol.detect import NoToolchain, detect
from compilepool.protocol.environment import compile_environment
from compilepool.protocol.errors import CompilePoolError
from compilepool.protocol.messages import ObjectInfo

_bundle_argument = click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))


@click.group()
def bundle() -> None:
    """Take results to other hosts: images, air-gapped machines, the next release's cluster.

    A bundle is for hosts with the same Triton, torch and kind of Python; where they are installed does not matter.
    """


@bundle.command("export")
@click.argument("out", type=click.Path(path_type=Path, dir_okay=False))
@match_option
@click.option(
    "--request-log",
    "log",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Only what a program asked for that ran with COMPILEPOOL_REQUEST_LOG=FILE.",
)
@click.option("--since", callback=age, help="Only what was made or asked for in the last e.g. 12h.")
@click.option(
    "--winners-only",
    is_flag=True,
    help="Of each kernel only the config that the autotune cache here names; what was not tuned is left out.",
)
@socket_option
@json_option
def export_command(
    out: Path,
    pattern: str,
    log: Path | None,
    since: float | None,
    winners_only: bool,
    socket: Path | None,
    as_json: bool,
) -> None:
    """Write what the daemon's store has of yours, and this Python's toolchain compiled, to OUT (.cpb)."""
    with _bundle_errors(), running_pool(socket) as pool:
        digests = request_log.read(log) if log else None
        chosen = [info for info in pool.objects() if _is_wanted(info, pattern, since)]
        if not chosen:
            raise click.ClickException("the store has nothing that matches (`compilepool cache list`)")
        toolchain = detect_portable()
        with progress(len(chosen), show=not as_json, title="exporting") as advance:
            results = _read(pool, chosen, digests, advance)
            manifest = write_bundle(out.absolute(), toolchain, _winners(results) if winners_only else results)
    _tell_manifest(manifest, f"exported to {out}", as_json=as_json)


@bundle.command("import")
@_bundle_argument
@click.option(
    "--emit",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write a Triton cache directory (use it as TRITON_CACHE_DIR), and ask no daemon.",
)
@click.option("--any-target", is_flag=True, help="Import although it is for none of this host's GPUs.")
@socket_option
@json_option
def import_command(file: Path, directory: Path | None, any_target: bool, socket: Path | None, as_json: bool) -> None:
    """Put the results of FILE into the daemon's store, or a Triton cache directory.

    Refused where the toolchain differs, with what differs; and where this host has GPUs, but none that FILE is for.
    """
    with _bundle_errors(), BundleReader(file) as reader:
        manifest = reader.manifest
        if differences := manifest.toolchain.differences(detect_portable()):
            raise click.ClickException(f"{file} was made by another toolchain: {'; '.join(differences)}")
        if not any_target:
            _check_targets(manifest)
        with progress(len(manifest.objects), show=not as_json, title="importing") as advance:
            if directory is not None:
                for _, (_, contents, segments) in reader.results():
                    emit(contents, segments, directory.absolute())
                    advance()
            else:
                with connect(socket, fallback=False) as pool:
                    _import(pool, reader, advance)
    _tell_manifest(manifest, f"imported into {directory or 'the store'}", as_json=as_json)


@bundle.command()
@_bundle_argument
@json_option
def inspect(file: Path, as_json: bool) -> None:
    """Say what FILE holds, and for whom; looks at the manifest alone."""
    with _bundle_errors(), BundleReader(file) as reader:
        manifest = reader.manifest
    if as_json:
        click.echo(msgspec.json.encode(manifest).decode())
        return
    for name, value in msgspec.to_builtins(manifest.toolchain).items():
        click.echo(f"{name + ':':<10}{value}")
    _tell_manifest(manifest, str(file), as_json=False)
    for item in manifest.objects:
        about = f"{count_text(len(item.units), 'config')}, {size_text(item.size)}"
        click.echo(f"{item.sha256[:12]} {item.kernel} {item.target}: {about}")


@bundle.command()
@_bundle_argument
@json_option
def verify(file: Path, as_json: bool) -> None:
    """Read all of FILE, and check every object."""
    with _bundle_errors(), BundleReader(file) as reader:
        count = sum(1 for _ in reader.results())
    click.echo(json.dumps({"objects": count, "damaged": 0}) if as_json else f"{count} objects, all whole")


@contextmanager
def _bundle_errors() -> Iterator[None]:
    try:
        yield
    except (BadBundle, NoToolchain, CompilePoolError, OSError, ValueError) as exc:
        raise click.ClickException(str(exc)) from exc


def _is_wanted(info: ObjectInfo, pattern: str, since: float | None) -> bool:
    return (
        info.fingerprint == detect().fingerprint
        and fnmatch.fnmatchcase(info.kernel, pattern)
        and (since is None or info.used >= time.time() - since)
    )


def _read(
    pool: Pool, chosen: list[ObjectInfo], digests: set[str] | None, advance: Callable[[], None]
) -> Iterator[Result]:
    for info in chosen:
        found, segments = pool.read_object(info.key)
        advance()
        if digests is None or found.identity.source in digests:
            yield found.identity, found.contents, segments


def _winners(results: Iterable[Result]) -> Iterator[Result]:
    from compilepool.bundle.winners import keep_winner

    for identity, contents, segments in results:
        if won := keep_winner(contents, segments):
            yield identity, *won


def _import(pool: Pool, reader: BundleReader, advance: Callable[[], None]) -> None:
    fingerprint = detect().fingerprint
    here, others = compile_environment(os.environ), []
    for _, (identity, contents, segments) in reader.results():
        pool.add_object(msgspec.structs.replace(identity, fingerprint=fingerprint), contents, segments)
        if identity.recipe.environment != here:
            others.append(identity.recipe.environment)
        advance()
    if others:
        click.echo(
            f"Note: {len(others)} of them are for programs with other variables than here. {_told(here, others[0])}",
            err=True,
        )


def _told(here: dict[str, str], theirs: dict[str, str]) -> str:
    differing = sorted(name for name in {*here, *theirs} if here.get(name) != theirs.get(name))
    return "; ".join(f"{name}: {theirs.get(name, 'unset')}, not {here.get(name, 'unset')}" for name in differing)


def _check_targets(manifest: Manifest) -> None:
    here = _targets_here()
    if here and not here & set(manifest.targets):
        raise click.ClickException(
            f"it is for {', '.join(manifest.targets)}, and this host has {', '.join(sorted(here))}: "
            "--any-target imports it all the same"
        )


def _targets_here() -> set[str]:
    """This host's NVIDIA GPUs as targets; empty where there are none, or nobody says."""
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return set()
    return {f"cuda:{line.strip().replace('.', '')}" for line in said.splitlines() if line.strip()}


def _tell_manifest(manifest: Manifest, what: str, *, as_json: bool) -> None:
    objects: list[Described] = manifest.objects
    units, size = sum(len(item.units) for item in objects), sum(item.size for item in objects)
    if as_json:
        told = {"objects": len(objects), "units": units, "bytes": size, "targets": manifest.targets}
        click.echo(json.dumps(told))
    else:
        targets = ", ".join(manifest.targets) or "no target"
        counts = f"{count_text(len(objects), 'kernel')}, {count_text(units, 'config')}"
        click.echo(f"{what}: {counts}, {size_text(size)}, for {targets}")
