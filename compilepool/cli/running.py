"""`compilepool run`: a program whose torch.compile uses the pool."""

import os
import shutil
from pathlib import Path

import click

from compilepool.cli.common import socket_option, socket_path
from compilepool.client import connect
from compilepool.protocol.errors import PoolUnavailable
from compilepool.protocol.rendezvous import SOCKET_VARIABLE


@click.command(context_settings={"ignore_unknown_options": True})
@socket_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(socket: Path | None, command: tuple[str, ...]) -> None:
    """Run COMMAND with torch.compile using the pool: compilepool run -- python train.py

    Starts a daemon if none runs, sets COMPILEPOOL=1 and becomes the command. Programs that COMMAND starts use the pool
    too.
    """
    path = socket_path(socket)
    if shutil.which(command[0]) is None:
        raise click.ClickException(f"there is no program {command[0]!r} to run")
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
        raise click.ClickException(
            "TORCH_DEVICE_BACKEND_AUTOLOAD is off, so torch would not load compilepool: unset it, "
            "or call compilepool.inductor.install() in the program"
        )
    try:
        connect(path, fallback=False).close()
    except PoolUnavailable as exc:
        click.echo(f"Warning: running without the compile pool: {exc}", err=True)
    os.execvpe(command[0], command, {**os.environ, "COMPILEPOOL": "1", SOCKET_VARIABLE: str(path)})
