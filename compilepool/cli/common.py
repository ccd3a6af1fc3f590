"""What several commands share: the socket option, the pool, and errors as one line."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from compilepool.autostart import is_absent
from compilepool.client import Pool, connect
from compilepool.corpus import BadKernelFile, UnknownTarget
from compilepool.protocol.errors import CompilePoolError, PoolUnavailable
from compilepool.protocol.rendezvous import default_socket

socket_option = click.option(
    "--socket",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The daemon's socket. [default: COMPILEPOOL_SOCKET, or the host's, or your own]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for machines.")


def socket_path(given: Path | None) -> Path:
    """The socket that a command is about."""
    return given.absolute() if given else default_socket(os.environ, os.getuid())


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn what a user can meet into one line and exit status 1."""
    try:
        yield
    except (CompilePoolError, BadKernelFile, UnknownTarget) as exc:
        raise click.ClickException(str(exc)) from exc


@contextmanager
def running_pool(socket: Path | None) -> Iterator[Pool]:
    """The pool of a daemon that runs already."""
    with one_line_errors():
        try:
            pool = connect(socket, autostart=False, fallback=False)
        except PoolUnavailable as exc:
            raise click.ClickException(f"{exc}{' (`compilepool serve` starts one)' if is_absent(exc) else ''}") from exc
        with pool:
            yield pool
