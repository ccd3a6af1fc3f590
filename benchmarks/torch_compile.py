"""torch.compile with and without the pool, on this machine's GPU: outputs, compiles in the program, and time.

    python -m benchmarks.torch_compile [--json FILE] [--cold]

Each side is one process with fresh caches that compiles and runs `benchmarks.workloads` one after the other; the pool's
daemon and forkserver are ready, torch's own pool starts with its process, as it does for everybody. Outputs must agree
to one percent. With --cold: one workload, in a process of its own, for torch's pool, for a pool that is ready, and for
one that does not run yet: the program has its daemon and forkserver started, and waits for neither.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.counting import COUNT_VARIABLE, MANAGER
from compilepool.client import connect
from compilepool.inductor.prepare import start_forkserver

COLD_WORKLOAD = "Llama training"


@contextmanager
def host(folder: Path, *, ready: bool) -> Iterator[dict[str, str]]:
    """The variables of a program that uses a pool of its own in `folder`; the pool ends with it."""
    environment = {
        "COMPILEPOOL": "1",
        "COMPILEPOOL_SOCKET": str(folder / "pool.sock"),
        "COMPILEPOOL_STORE": str(folder / "store"),
    }
    if ready:
        start(environment)
    try:
        yield environment
    finally:
        with connect(folder / "pool.sock", autostart=False) as pool:
            pool.stop(now=True)


def start(environment: dict[str, str]) -> None:
    """Have a daemon and a forkserver, and wait until that is ready."""
    start_forkserver(os.environ | environment)
    program = (
        "from torch._inductor.async_compile import AsyncCompile as a; a.wait_pool_ready(); print(a.process_pool())"
    )
    subprocess.run([sys.executable, "-c", program], env=os.environ | environment, check=True)


def run(folder: Path, environment: dict[str, str], *names: str) -> list[dict[str, Any]]:
    """What a process told of its workloads; its caches and outputs are in `folder`."""
    (folder / "outputs").mkdir(parents=True)
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TRITON_CACHE_MANAGER": MANAGER,
        COUNT_VARIABLE: str(folder / "count"),
    }
    command = [sys.executable, "-m", "benchmarks.workloads", str(folder / "outputs"), *names]
    told = subprocess.run(command, env=os.environ | caches | environment, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in told.stdout.splitlines() if line.startswith("{")]


def disagreement(one: Path, other: Path) -> str:
    """'' if the outputs of both sides agree."""
    for left, right in zip(torch.load(one), torch.load(other), strict=True):
        try:
            torch.testing.assert_close(left, right, rtol=1e-2, atol=1e-2)
        except AssertionError as exc:
            return str(exc).splitlines()[0]
    return ""


def side_by_side(folder: Path) -> list[dict[str, Any]]:
    """Every workload, for torch's pool and for this one."""
    stock = run(folder / "stock", {})
    with host(folder, ready=True) as environment:
        pooled = run(folder / "pooled", environment)
        with connect(folder / "pool.sock", autostart=False) as pool:
            print(json.dumps(pool.status().counters), file=sys.stderr)
    rows = []
    for before, after in zip(stock, pooled, strict=True):
        name = f"outputs/{before['name']}.pt"
        differs = disagreement(folder / "stock" / name, folder / "pooled" / name)
        rows.append({"name": before["name"], "stock": before, "pool": after, "outputs": differs or "agree"})
    return rows


def cold(folder: Path) -> dict[str, dict[str, Any]]:
    """One workload in a process of its own, each case twice."""
    told = {}
    for turn in ("first", "second"):
        (told[f"torch's pool, {turn}"],) = run(folder / f"stock-{turn}", {}, COLD_WORKLOAD)
        for name, ready in (("ready", True), ("not started", False)):
            place = folder / f"{name}-{turn}".replace(" ", "-")
            place.mkdir()
            with host(place, ready=ready) as environment:
                (told[f"compilepool {name}, {turn}"],) = run(place / "run", environment, COLD_WORKLOAD)
    return told


def table(rows: list[dict[str, Any]]) -> Table:
    """The rows for a person."""
    shown = Table(title="torch's own pool, then compilepool")
    for column in ("workload", "seconds", "of them waiting", "triton.compile", "compiled", "outputs"):
        shown.add_column(column, justify="left" if column in ("workload", "outputs") else "right")
    for row in rows:
        sides = row["stock"], row["pool"]
        figures = [", ".join(f"{side[name]:{form}}" for side in sides) for name, form in _FIGURES]
        shown.add_row(row["name"], *figures, row["outputs"])
    return shown


_FIGURES = (("seconds", ".1f"), ("waited", ".1f"), ("calls", "d"), ("compiled", "d"))


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cold", action="store_true")
    options = parser.parse_args()
    console = Console(width=120)
    with tempfile.TemporaryDirectory(prefix="compilepool-bench-") as name:
        if options.cold:
            told: Any = cold(Path(name))
            console.print(f"{COLD_WORKLOAD}, first step, seconds, and seconds of waiting for compile workers:")
            for case, figures in told.items():
                console.print(f"{case:<30} {figures['seconds']:.1f} {figures['waited']:.1f}")
        else:
            told = side_by_side(Path(name))
            console.print(table(told))
    if options.json:
        options.json.write_text(json.dumps(told, indent=2) + "\n")
    if not options.cold and any(row["outputs"] != "agree" for row in told):
        sys.exit(1)


if __name__ == "__main__":
    main()
