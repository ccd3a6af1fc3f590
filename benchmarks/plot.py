"""Draws what `benchmarks.ranks --json` measured.

python -m benchmarks.plot RANKS.json OUT.svg   (needs matplotlib)
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


def main() -> None:
    """See the module's docstring."""
    rows: list[dict[str, Any]] = json.loads(Path(sys.argv[1]).read_text())
    figure, axes = pyplot.subplots(1, len(PANELS), figsize=(12, 2.8))
    for axis, (field, title) in zip(axes, PANELS.items(), strict=True):
        for pool, colour in COLOURS.items():
            points = [(row["ranks"], row[field]) for row in rows if row["pool"] == pool]
            axis.plot(*zip(*points, strict=True), marker="o", color=colour, label=pool)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("ranks", fontsize=8)
        axis.set_xticks(sorted({row["ranks"] for row in rows}))
        axis.set_ylim(bottom=0)
        axis.tick_params(labelsize=8)
    axes[0].legend(fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(sys.argv[2])


if __name__ == "__main__":
    main()
