"""The daemon's log: one line of key=value an event, on standard error, for people and journald alike."""

import logging

_log = logging.getLogger("compilepool.daemon")


def event(name: str, **fields: object) -> None:
    """Log one event; values with spaces are quoted."""
    _log.info("event=%s %s", name, " ".join(f"{key}={_quoted(value)}" for key, value in fields.items()))


def to_stderr() -> None:
    """Send the log to standard error."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s level=%(levelname)s %(message)s")


def _quoted(value: object) -> str:
    text = str(value)
    return repr(text) if not text or any(c in text for c in " \n=\"'") else text
