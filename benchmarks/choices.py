"""Whether compilepool.autotune chooses as well as triton.autotune, for each of several kernels.

    python -m benchmarks.choices [--json]

Both tune the same configs on the same arguments, in one process; then what they chose is measured in turns. `as good`:
the time of the one over that of the other.
"""

import argparse
import json
import os
import sys
import tempfile
from typing import Any

from benchmarks.tuning import as_good


def main() -> None:
    """Tune each kernel twice, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="compilepool-bench-") as root:
        os.environ["COMPILEPOOL_TUNING_DIR"] = root
        results = [_choose(case) for case in _cases()]
    sys.stdout.write(json.dumps(results) + "\n" if options.json else _table(results))


def _cases() -> list[Any]:
    from tests.handwritten import CASES

    return CASES


def _choose(case: Any) -> dict[str, Any]:
    import torch
    import triton

    import compilepool

    arguments, grid, _ = case.make(torch)
    told = {"key": case.key, "reset_to_zero": list(case.reset_to_zero)}
    ours = compilepool.autotune(case.configs, **told)(case.kernel)
    theirs = triton.autotune(case.configs, **told)(case.kernel)
    ours[grid](*arguments)
    ratio = as_good(ours, theirs, arguments, grid)
    chosen = {"ours": str(ours.best_config), "theirs": str(theirs.best_config)}
    return {"kernel": case.name, "configs": len(case.configs), "as_good": ratio, **chosen}


def _table(results: list[dict[str, Any]]) -> str:
    lines = [f"{'kernel':<22} {'configs':>7} {'as good':>8}  chosen"]
    for one in results:
        same = "the same" if one["ours"] == one["theirs"] else f"{one['ours']} / {one['theirs']}"
        lines.append(f"{one['kernel']:<22} {one['configs']:>7} {one['as_good']:>8.3f}  {same}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
