"""`reset_to_zero` and `restore_value`: what Triton's own hooks do, with arguments that may be None.

Triton's fail on an optional pointer that is None for this call (triton/runtime/autotuner.py, `_pre_hook`; up to 3.7).
"""

from collections.abc import Sequence
from typing import Any


class Resetting:
    """Hooks around each measured launch; values are the call's arguments by name."""

    def __init__(self, zeroed: Sequence[str], restored: Sequence[str]) -> None:
        self._zeroed = zeroed
        self._restored = restored
        self._copies: dict[str, Any] = {}

    def before(self, values: dict[str, Any], *, reset_only: bool = False) -> None:
        """Fill with zeros; keep copies of what is to be put back, unless only the former is wanted."""
        for name in self._zeroed:
            if values[name] is not None:
                values[name].zero_()
        if not reset_only:
            self._copies = {name: values[name].clone() for name in self._restored if values[name] is not None}

    def after(self, values: dict[str, Any], exception: Exception | None) -> None:
        """Put back."""
        del exception
        for name, copy in self._copies.items():
            values[name].copy_(copy)
        self._copies = {}
