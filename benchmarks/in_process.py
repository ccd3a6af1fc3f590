"""Compiles variants of kernels in this process, after one warm-up; prints each one's seconds as JSON.

python -m benchmarks.in_process
"""

import json
import tempfile
import time
from pathlib import Path

from benchmarks.variants import variants
from compilepool.daemon.worker.board import own_board
from compilepool.daemon.worker.compile import compile_kernel, scratch
from compilepool.daemon.worker.warmup import warm_up
from compilepool.protocol.messages import Recipe


def main() -> None:
    """See the module's docstring."""
    with tempfile.TemporaryDirectory(prefix="compilepool-bench-") as folder:
        warm_up(Path(folder) / "warm-up")
        seconds = []
        for number, kernel in enumerate(variants()):
            place = scratch(Path(folder) / str(number), "")
            place.enter()
            started = time.monotonic()
            compile_kernel(Recipe(kernel.name, {}, {}), kernel.source, place, own_board())
            seconds.append(time.monotonic() - started)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
