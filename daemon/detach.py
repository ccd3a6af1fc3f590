"""Starts a part of the pool in the background, and tells its starter whether it got going."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

# A log of the last few thousand events; a background process has nobody who rotates it.
LOG_BYTES = 4 << 20
TAIL_CHARACTERS = 1000


class DidNotStart(Exception):
    """The background process gave up before it was ready; the message is its own."""


def run_detached(body: Callable[[Callable[[], None]], None], log: Path) -> None:
    """Run `body(ready)` in a background process, and return once it has called `ready`.

    The process has a session of its own, no terminal, and `log` for its output. Raises DidNotStart.
    """
    _open_standard_streams()
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(reading)
        _live(body, log, writing)
    os.close(writing)
    with os.fdopen(reading) as report:
        said = report.read()
    if said != "ready":
        raise DidNotStart(said or f"it died while starting; its log ({log}) ends: {_end_of(log)}")


def _end_of(log: Path) -> str:
    """The last of what was said there."""
    try:
        return log.read_text(errors="replace")[-TAIL_CHARACTERS:].strip() or "(nothing)"
    except OSError as exc:
        return str(exc)


def _open_standard_streams() -> None:
    """Give this process the standard streams that it was started without: a pipe would take their numbers."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def _live(body: Callable[[Callable[[], None]], None], log: Path, report: int) -> NoReturn:
    status = 1
    try:
        os.setsid()
        os.chdir("/")
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if log.parent.stat().st_uid not in (os.getuid(), 0):
            # Under /tmp somebody else may have made it first.
            raise PermissionError(f"{log.parent} is another user's: remove it, or set XDG_RUNTIME_DIR")
        _replace_streams(log)
        body(lambda: _say(report, "ready"))
        status = 0
    except Exception as exc:  # noqa: BLE001 - whatever it is, the starter is to read it
        _say(report, str(exc))
    finally:
        os._exit(status)


def _say(report: int, text: str) -> None:
    try:
        os.write(report, text.encode())
        os.close(report)
    except OSError:
        # Already closed: it was ready, and its starter has gone on; the log has the rest.
        os.write(2, f"{text}\n".encode())


def _replace_streams(log: Path) -> None:
    full = log.exists() and log.stat().st_size > LOG_BYTES
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | (os.O_TRUNC if full else 0)
    output = os.open(log, flags, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, stream in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, stream)
        os.set_inheritable(stream, True)
    os.close(output)
    os.close(nothing)
