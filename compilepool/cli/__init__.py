"""The command line: one module a group of commands; each imports what it needs when it runs."""

from importlib.metadata import version

import click

from compilepool.cli.admin import events, status, stop
from compilepool.cli.bundles import bundle
from compilepool.cli.cache import cache
from compilepool.cli.compiling import compile_command, demo
from compilepool.cli.install import install
from compilepool.cli.running import run
from compilepool.cli.serving import backend, forkserver, serve
from compilepool.cli.tuning import tuning


class _InOrder(click.Group):
    """Lists the commands in the order in which a newcomer meets them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The commands' names."""
        return list(self.commands)


@click.group(cls=_InOrder, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("compilepool"), prog_name="compilepool")
def main() -> None:
    """One compile pool a host, for every program that uses Triton.

    Programs reach it by `compilepool.connect()`, which starts a daemon for your user if none runs. Daemon and programs
    meet at a socket: --socket, or COMPILEPOOL_SOCKET, or compilepool/pool.sock under XDG_RUNTIME_DIR.
    """


for _command in (
    demo,
    run,
    compile_command,
    status,
    events,
    cache,
    bundle,
    tuning,
    stop,
    serve,
    forkserver,
    backend,
    install,
):
    main.add_command(_command)
