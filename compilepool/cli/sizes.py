"""Sizes, ages and times as people write and read them."""

import re
import time

import click

from compilepool.protocol.sizes import BadSize, parse_size

_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 604800}


def size(_context: click.Context, _option: click.Parameter, text: str | None) -> int | None:
    """Option callback: bytes, written as 500MB or 10GiB."""
    if text is None:
        return None
    try:
        return parse_size(text)
    except BadSize as exc:
        raise click.BadParameter(str(exc)) from exc


def age(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    """Option callback: seconds, written as 30min, 12h or 7d."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h|d|w)", text.strip())
    if match is None:
        raise click.BadParameter(f"{text!r} is no time: write it as 30min, 12h or 7d")
    return float(match.group(1)) * _SECONDS[match.group(2)]


def size_text(count: float) -> str:
    """As people read it: 12.3 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def count_text(count: int, what: str) -> str:
    """1 kernel, 2 kernels."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def age_text(moment: float) -> str:
    """How long ago a moment was, in one unit."""
    seconds = max(0.0, time.time() - moment)
    for name, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {name} ago"
    return f"{seconds:.0f} s ago"
