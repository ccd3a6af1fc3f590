"""Draws what `benchmarks.ranks --json` or `benchmarks.store --json` measured.

python -m benchmarks.plot MEASURED.json OUT.svg   (needs matplotlib)
"""

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib import pyplot

PANELS = {
    "compiling": "CPU seconds of compiling",
    "units": "units compiled",
    "memory": "MiB of compile processes",
    "wall": "seconds to the last rank's first step",
}
COLOURS = {"torch SubprocPool": "#999999", "compilepool": "#1f6fb4"}
STORE_PANELS = {
    "insert": "microseconds of an insert",
    "hit": "microseconds of a hit",
    "miss": "microseconds of a miss",
    "rss": "MiB of the process",
}


def main() -> None:
    """See the module's docstring."""
    measured: Any = json.loads(Path(sys.argv[1]).read_text())
    figure, axes = pyplot.subplots(1, len(PANELS), figsize=(12, 2.8))
    if isinstance(measured, dict):
        _store(axes, measured["rows"])
    else:
        _ranks(axes, measured)
    for axis in axes:
        axis.set_ylim(bottom=0)
        axis.tick_params(labelsize=8)
    figure.tight_layout()
    figure.savefig(sys.argv[2])


def _ranks(axes: Any, rows: list[dict[str, Any]]) -> None:
    for axis, (field, title) in zip(axes, PANELS.items(), strict=True):
        for pool, colour in COLOURS.items():
            points = [(row["ranks"], row[field]) for row in rows if row["pool"] == pool]
            axis.plot(*zip(*points, strict=True), marker="o", color=colour, label=pool)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("ranks", fontsize=8)
        axis.set_xticks(sorted({row["ranks"] for row in rows}))
    axes[0].legend(fontsize=8, frameon=False)


def _store(axes: Any, rows: list[dict[str, Any]]) -> None:
    for axis, (field, title) in zip(axes, STORE_PANELS.items(), strict=True):
        points = [(row["objects"] / 1000, row[field]) for row in rows]
        axis.plot(*zip(*points, strict=True), marker="o", color=COLOURS["compilepool"])
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("thousand objects", fontsize=8)


if __name__ == "__main__":
    main()
