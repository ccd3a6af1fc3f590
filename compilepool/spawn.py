"""Runs this package's own commands to their end, in this program's interpreter."""

import os
import subprocess
import sys

from compilepool.bootstrap import command


class CommandFailed(Exception):
    """The command ended with an error; the message is the end of what it said."""


def run_command(*arguments: str, timeout: float) -> None:
    """Run `compilepool ARGUMENTS` to its end; raises CommandFailed."""
    environment = {**os.environ, "COMPILEPOOL": "0"}
    try:
        done = subprocess.run(
            command(*arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise CommandFailed(f"could not run {sys.executable}: {exc}") from exc
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise CommandFailed(said[-1].removeprefix("Error: "))
