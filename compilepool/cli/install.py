"""`compilepool install`: the systemd units of this installation, for a user or for a whole host."""

import os
import sys
from importlib import resources
from pathlib import Path

import click

_SYSTEM = {
    "compilepool.service": "etc/systemd/system/compilepool.service",
    "compilepool.socket": "etc/systemd/system/compilepool.socket",
    "compilepool@.socket": "etc/systemd/system/compilepool@.socket",
    "compilepool-backend.service": "etc/systemd/system/compilepool-backend.service",
    "sysusers.conf": "etc/sysusers.d/compilepool.conf",
    "tmpfiles.conf": "etc/tmpfiles.d/compilepool.conf",
    "compilepool.toml": "etc/compilepool/compilepool.toml",
}
_USER = {
    "compilepool.service": "systemd/user/compilepool.service",
    "compilepool-forkserver.service": "systemd/user/compilepool-forkserver.service",
}
# The administrator's own from the first day on.
_KEPT = ("compilepool.toml",)
_COMMAND = "@compilepool@"
_NEXT_SYSTEM = """Now, as root:
  systemd-sysusers && systemd-tmpfiles --create
  systemctl daemon-reload
  systemctl enable --now compilepool.socket compilepool.service compilepool-backend.service
  usermod --append --groups compilepool USER     (for each user; it takes a new login)
Then: compilepool status"""
_NEXT_USER = """Now:
  systemctl --user daemon-reload
  systemctl --user enable --now compilepool.service compilepool-forkserver.service
Then: compilepool status"""


@click.command()
@click.option("--system", is_flag=True, help="For all users of this host, as a service; needs root.")
@click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write below this directory, e.g. of an image. [default: /, or for a user ~/.config]",
)
def install(system: bool, root: Path | None) -> None:
    """Write systemd units that run this installation: for you, or with --system for the whole host.

    A configuration that is there is kept. Nothing is started: what to run next is printed.
    """
    folder = root or (Path("/") if system else Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"))
    if system and (why := _out_of_reach(Path(sys.prefix))):
        click.echo(f"Note: {why}: install it elsewhere, e.g. in a virtual environment below /opt.", err=True)
    try:
        for name, place in (_SYSTEM if system else _USER).items():
            _write(name, folder / place, system=system)
    except OSError as exc:
        raise click.ClickException(f"{exc}; --system needs root, --root writes elsewhere") from exc
    click.echo(_NEXT_SYSTEM if system else _NEXT_USER)


def _write(name: str, path: Path, *, system: bool) -> None:
    if name in _KEPT and path.exists():
        click.echo(f"kept {path}")
        return
    source = resources.files("compilepool") / "systemd" / ("system" if system else "user") / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source.read_text().replace(_COMMAND, _command()))
    path.chmod(0o644)
    click.echo(f"wrote {path}")


def _command() -> str:
    script = Path(sys.executable).with_name("compilepool")
    return str(script) if script.exists() else f"{sys.executable} -P -m compilepool"


def _out_of_reach(prefix: Path) -> str:
    """Why a service of another user could not run what is there; '' if it could."""
    for start in (prefix, prefix.resolve(), Path(sys.executable).resolve()):
        if start.parts[1:2] in (("home",), ("root",)):
            return f"{start} is below /{start.parts[1]}, which the units hide from what they run"
        for place in start.parents:
            if not place.stat().st_mode & 0o001:
                return f"only its owner may enter {place}, on the way to {start}"
    return ""
