"""R ranks of one training job compile the same model at once, with torch's own pools and with this one.

    python -m benchmarks.ranks [--model llama resnet50] [--ranks 1 2 4 8] [--json FILE]

Both in one run; all ranks share one fresh cache directory, as under torchrun; the daemon and its forkserver are ready.
For each: seconds until the last rank has taken its first step (tracing and code generation included, which every rank
does for itself), CPU seconds of everything and of the compile processes alone, how many those are and their memory at
its peak (proportional set size: pages that processes share are counted once), and the units that were compiled, counted
by Triton's cache.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.counting import COUNT_VARIABLE, MANAGER, counted
from benchmarks.pool import cpu_of
from benchmarks.torch_compile import host
from compilepool.client import connect

SAMPLE_SECONDS = 1.5


@dataclass(frozen=True, slots=True)
class Row:
    """One case; seconds, MiB."""

    model: str
    ranks: int
    pool: str
    wall: float
    cpu: float
    compiling: float
    memory: float
    processes: int
    units: int


class Memory:
    """The peak of what processes take together, and how many they were."""

    def __init__(self, roots: list[int], *, themselves: bool) -> None:
        self.peak, self.count = 0.0, 0
        self._roots = roots
        self._themselves = themselves
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> None:
        """Sample no more."""
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            sizes = [size for pid in self._processes() if (size := pss(pid))]
            self.peak, self.count = max(self.peak, sum(sizes)), max(self.count, len(sizes))

    def _processes(self) -> list[int]:
        found = set(self._roots) if self._themselves else set()
        for root in self._roots:
            try:
                found |= {child.pid for child in psutil.Process(root).children(recursive=True)}
            except psutil.NoSuchProcess:
                continue
        return sorted(found)


def pss(pid: int) -> float:
    """Proportional set size of a process in MiB; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)


def start(model: str, ranks: int, folder: Path, environment: dict[str, str]) -> "list[subprocess.Popen[str]]":
    """So many ranks that are ready to take a step."""
    shared = {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TRITON_CACHE_MANAGER": MANAGER,
        COUNT_VARIABLE: str(folder / "count"),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.rank", model],
            env=os.environ | shared | environment | {"LOCAL_RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    return processes


def step(processes: "list[subprocess.Popen[str]]") -> list[dict[str, float]]:
    """Let all ranks take their step; what they told."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    told = []
    for process in processes:
        assert process.stdout is not None
        told.append(json.loads(process.stdout.readline()))
    for process in processes:
        process.communicate()
    return told


def measure_stock(model: str, ranks: int, folder: Path) -> Row:
    """With a SubprocPool in each rank."""
    processes = start(model, ranks, folder, {})
    memory = Memory([process.pid for process in processes], themselves=False)
    told = step(processes)
    memory.stop()
    compiling = sum(t["cpu"] - t["own"] for t in told)
    return row(model, ranks, "torch SubprocPool", folder, told, compiling, memory)


def measure_pool(model: str, ranks: int, folder: Path) -> Row:
    """With one daemon for all."""
    with host(folder, ready=True) as environment, connect(folder / "pool.sock", autostart=False) as pool:
        processes = start(model, ranks, folder, environment)
        before = pool.status()
        pids = [before.pid, *(int(text.split("pid ")[1].split(",")[0]) for text in before.forkservers)]
        cpu, memory = cpu_of(before), Memory(pids, themselves=True)
        told = step(processes)
        memory.stop()
        return row(model, ranks, "compilepool", folder, told, cpu_of(pool.status()) - cpu, memory)


def row(
    model: str, ranks: int, pool: str, folder: Path, told: list[dict[str, float]], compiling: float, memory: Memory
) -> Row:
    """The figures of one case; all ranks must have computed the same."""
    assert len({round(t["loss"], 2) for t in told}) == 1, [t["loss"] for t in told]
    units = len(counted(folder / "count"))
    wall, own = max(t["seconds"] for t in told), sum(t["own"] for t in told)
    return Row(model, ranks, pool, wall, own + compiling, compiling, memory.peak, memory.count, units)


def table(rows: list[Row]) -> Table:
    """The rows for a person."""
    shown = Table(title=f"{len(os.sched_getaffinity(0))} cores")
    for name in ("model", "ranks", "pool", "step, s", "CPU, s", "compiling, s", "memory, MiB", "processes", "units"):
        shown.add_column(name, justify="left" if name in ("model", "pool") else "right")
    for r in rows:
        figures = [f"{r.wall:.1f}", *(f"{value:.0f}" for value in (r.cpu, r.compiling, r.memory))]
        shown.add_row(r.model, str(r.ranks), r.pool, *figures, str(r.processes), str(r.units))
    return shown


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["llama", "resnet50"])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    console, rows = Console(width=120), list[Row]()
    for model in options.model:
        for ranks in options.ranks:
            for measure in (measure_pool, measure_stock):
                with tempfile.TemporaryDirectory(prefix="compilepool-bench-") as folder:
                    rows.append(measure(model, ranks, Path(folder)))
                # As far as it has come: a run of minutes that is cut short must not be lost.
                console.print(table(rows[-1:]))
                if options.json:
                    options.json.write_text(json.dumps([asdict(r) for r in rows], indent=2) + "\n")
    console.print(table(rows))


if __name__ == "__main__":
    main()
