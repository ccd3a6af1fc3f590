"""Tells the user something once a process, however often it happens."""

import logging

log = logging.getLogger("compilepool")


class SayOnce:
    """A warning that is given the first time it is called for."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._said = False

    def __call__(self, *arguments: object) -> None:
        """Say it, with these in its text, unless it was said."""
        if not self._said:
            self._said = True
            log.warning(self._text, *arguments)
