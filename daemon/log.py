"""The daemon's log: one line of key=value an event, on standard error, for people and journald alike.

The latest events are kept too, for `compilepool events`: numbered, so that a reader can ask for those it has not seen.
Each owner's are kept and numbered for themselves as well, so that nobody sees, counts or pushes out another's.
"""

import itertools
import logging
import os
import time
from collections import deque

from compilepool.daemon.owner import Owner
from compilepool.protocol.messages import Event

# Half an hour of a busy host; 300 bytes each.
KEPT, KEPT_OF_OWNER = 2000, 500
# Of one value: a kernel's name may be anything.
VALUE_CHARACTERS = 400
# Events in one answer: with all their values less than a header may have.
PAGE = 200
# syslog's levels, as journald takes them before a line (sd-daemon(3)).
_PRIORITIES = {logging.ERROR: "<3>", logging.WARNING: "<4>", logging.INFO: "<6>"}

_log = logging.getLogger("compilepool.daemon")


class _Recent:
    """The latest events of one owner, or of all."""

    def __init__(self, most: int) -> None:
        self._numbers = itertools.count(1)
        self._events: deque[Event] = deque(maxlen=most)

    def add(self, name: str, told: dict[str, str]) -> None:
        self._events.append(Event(next(self._numbers), time.time(), name, told))

    def after(self, number: int) -> list[Event]:
        return list(itertools.islice((event for event in self._events if event.number > number), PAGE))


_all = _Recent(KEPT)
_of_owner: dict[Owner, _Recent] = {}


def event(name: str, owner: Owner | None = None, **fields: object) -> None:
    """Log one event, of this owner's or the daemon's own; values with spaces are quoted."""
    told = {key: str(value)[:VALUE_CHARACTERS] for key, value in fields.items()}
    if owner is not None:
        _of_owner.setdefault(owner, _Recent(KEPT_OF_OWNER)).add(name, told)
        told = {"user": str(owner), **told}
    _all.add(name, told)
    _log.info("event=%s %s", name, " ".join(f"{key}={_quoted(value)}" for key, value in told.items()))


def events_after(owner: Owner | None, number: int) -> list[Event]:
    """The first `PAGE` events after this one, oldest first, of those that are still kept; None: of everybody."""
    if owner is None:
        return _all.after(number)
    return _of_owner[owner].after(number) if owner in _of_owner else []


def to_stderr() -> None:
    """Send the log to standard error; journald adds the time itself, and wants the level its own way."""
    handler = logging.StreamHandler()
    if "JOURNAL_STREAM" in os.environ:
        handler.setFormatter(_ForJournal("%(message)s"))
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s level=%(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class _ForJournal(logging.Formatter):
    """One line, with its priority before it."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        return _PRIORITIES.get(record.levelno, "<6>") + super().format(record).replace("\n", " ")


def _quoted(text: str) -> str:
    return repr(text) if not text or any(c in text for c in " \n=\"'") else text
