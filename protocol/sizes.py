"""Sizes as people write them: 500MB, 10GiB."""

import re

_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4,
          "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}  # fmt: skip


class BadSize(ValueError):
    """It is no size."""


def parse_size(text: str) -> int:
    """Bytes; raises BadSize."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", text.strip(), re.IGNORECASE)
    if match is None or match.group(2).lower() not in _UNITS:
        raise BadSize(f"{text!r} is no size: write it as 500MB or 10GiB")
    return int(float(match.group(1)) * _UNITS[match.group(2).lower()])
