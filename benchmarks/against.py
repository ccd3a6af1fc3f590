"""This checkout against another one: the same kernels through a ready daemon of each, in turns.

    python -m benchmarks.against OTHER [--rounds 5] [--kernels resnet50_train] [--json]

OTHER is a directory with another version (`git worktree add OTHER COMMIT`). Each round starts a daemon of each version
with an empty store, lets it have a forkserver, hands over all kernels at once, and takes the seconds until the last is
answered and the CPU seconds that the workers took.
"""

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from compilepool.corpus import bundled

HERE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds from handing over to the last answer, and CPU seconds of the workers."""

    wall: float
    cpu: float


def measure(checkout: Path, kernels: Path, first: Path) -> Round:
    """One round of one version."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}

    def run(*arguments: str) -> str:
        command = [sys.executable, "-P", "-m", "compilepool", *arguments]
        done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    with tempfile.TemporaryDirectory(prefix="compilepool-against-") as folder:
        socket = ("--socket", f"{folder}/pool.sock")
        run("serve", "--detach", "--idle-exit", "60", *socket, "--store", f"{folder}/store")
        try:
            run("compile", str(first), *socket)
            summary = json.loads(run("compile", "--json", str(kernels), *socket))
        finally:
            run("stop", "--now", *socket)
    if summary["failed"]:
        raise SystemExit(f"{checkout}: {summary['failed'][0]}")
    return Round(summary["wall"], summary["cpu"])


def _write(path: Path, kernels: list[tuple[str, str]]) -> Path:
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps({"name": name, "source": source}) + "\n" for name, source in kernels)
    return path


def main() -> None:
    """Print the ratio of the medians, this version's over the other's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kernels", default="resnet50_train")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    recorded = [(kernel.name, kernel.source) for kernel in bundled(options.kernels)]
    rounds: dict[str, list[Round]] = {"this": [], "other": []}
    with tempfile.TemporaryDirectory(prefix="compilepool-against-") as folder:
        kernels = _write(Path(folder) / "kernels.jsonl.gz", recorded)
        one = bundled("resnet50_train")[0] if options.kernels == "llama_train" else bundled("llama_train")[0]
        first = _write(Path(folder) / "first.jsonl.gz", [(one.name, one.source)])
        for number in range(options.rounds):
            # Whoever goes first meets another machine than who goes second: they take turns.
            order = [("this", HERE), ("other", options.other.resolve())]
            for which, checkout in order if number % 2 else reversed(order):
                rounds[which].append(measure(checkout, kernels, first))
    if options.json:
        print(json.dumps({which: [asdict(one) for one in each] for which, each in rounds.items()}))
    for what in ("wall", "cpu"):
        this, other = ([getattr(one, what) for one in rounds[which]] for which in ("this", "other"))
        ratios = sorted(a / b for a, b in zip(this, other, strict=True))
        print(
            f"{options.kernels}, {len(recorded)} kernels, {os.cpu_count()} cores, {what}: "
            f"{statistics.median(this):.2f} s against {statistics.median(other):.2f} s, ratio "
            f"{statistics.median(this) / statistics.median(other):.3f} (rounds: {ratios[0]:.3f} to {ratios[-1]:.3f})"
        )


if __name__ == "__main__":
    main()
