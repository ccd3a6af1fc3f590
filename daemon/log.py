"""The daemon's log: one line of key=value an event, on standard error, for people and journald alike.

The latest events are kept too, for `compilepool events`: numbered, so that a reader can ask for those it has not seen.
"""

import itertools
import logging
import time
from collections import deque

from compilepool.protocol.messages import Event

# Half an hour of a busy host; 300 bytes each.
KEPT = 2000
# Of one value: a kernel's name may be anything.
VALUE_CHARACTERS = 400
# Events in one answer: with all their values less than a header may have.
PAGE = 200

_log = logging.getLogger("compilepool.daemon")
_recent: deque[Event] = deque(maxlen=KEPT)
_numbers = itertools.count(1)


def event(name: str, **fields: object) -> None:
    """Log one event; values with spaces are quoted."""
    told = {key: str(value)[:VALUE_CHARACTERS] for key, value in fields.items()}
    _recent.append(Event(next(_numbers), time.time(), name, told))
    _log.info("event=%s %s", name, " ".join(f"{key}={_quoted(value)}" for key, value in told.items()))


def events_after(number: int) -> list[Event]:
    """The first `PAGE` events after this one, oldest first, of those that are still kept."""
    return list(itertools.islice((event for event in _recent if event.number > number), PAGE))


def to_stderr() -> None:
    """Send the log to standard error."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s level=%(levelname)s %(message)s")


def _quoted(text: str) -> str:
    return repr(text) if not text or any(c in text for c in " \n=\"'") else text
