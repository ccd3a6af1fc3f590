"""Runs this package's own commands in this program's interpreter, in the background.

The command must find the same packages as this program does, however that came to have them (a checkout, a changed
`sys.path`): their roots are appended to the interpreter's own path. The working directory and the script's directory,
which may hold a `queue.py` or `types.py`, are not on it.
"""

import os
import subprocess
import sys
from pathlib import Path

from compilepool.protocol.detect import NoToolchain, package_root

_BOOTSTRAP = (
    "import sys; sys.path += [p for p in sys.argv.pop(1).split(':') if p not in sys.path]; "
    "from compilepool.cli import main; main()"
)
_PACKAGES = ("compilepool", "msgspec", "anyio", "click", "cloudpickle", "triton", "torch")


class CommandFailed(Exception):
    """The command ended with an error; the message is the end of what it said."""


def run_command(*arguments: str, timeout: float) -> None:
    """Run `compilepool ARGUMENTS` to its end; raises CommandFailed."""
    command = [sys.executable, "-P", "-c", _BOOTSTRAP, os.pathsep.join(_roots()), *arguments]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise CommandFailed(f"could not run {sys.executable}: {exc}") from exc
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise CommandFailed(said[-1].removeprefix("Error: "))


def _roots() -> list[str]:
    roots: dict[str, None] = {}
    for name in _PACKAGES:
        try:
            roots[str(Path(package_root(name)).parent)] = None
        except NoToolchain:
            continue
    return list(roots)
