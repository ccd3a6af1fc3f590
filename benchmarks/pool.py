"""The pool against torch's own, N client processes at once, and what a request costs beside its compile.

    python -m benchmarks.pool [--clients 1 2 4] [--corpus llama_train ...] [--beside N] [--json FILE]

For each N, in turn: N processes that have imported torch each compile the same kernels through a ready daemon (fresh
store, warm forkserver), then N such processes through a SubprocPool of their own, which they start, as torch.compile
does. `floor` is what the distinct kernels must take: their workers' CPU seconds over the cores. With --beside, N
processes that only compute run all the time, as a training job's own would.
"""

import argparse
import contextlib
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.variants import variants
from compilepool.client import Pool, connect
from compilepool.corpus import Kernel, bundled
from compilepool.daemon.slots import available_slots
from compilepool.protocol.messages import Compiled, StatusReport

CORES = available_slots()
# A kernel of its own for warming, which is in none of the corpora that are measured.
WARM_WITH = "user_defined_triton"


@dataclass(frozen=True, slots=True)
class Row:
    """One case; seconds until the first and the last answer, and until the last kernel was loaded.

    cpu: of all processes together; ratio: answered over floor
    """

    corpus: str
    clients: int
    pool: str
    first: float
    answered: float
    loaded: float
    cpu: float
    floor: float
    ratio: float
    jobs: int


@contextlib.contextmanager
def daemon() -> Iterator[Pool]:
    """A daemon with a fresh store and a warm forkserver."""
    with tempfile.TemporaryDirectory(prefix="compilepool-bench-") as folder:
        socket = Path(folder) / "pool.sock"
        command = [
            sys.executable,
            "-P",
            "-m",
            "compilepool",
            "serve",
            "--detach",
            "--idle-exit",
            "60",
            "--socket",
            str(socket),
        ]
        subprocess.run([*command, "--store", f"{folder}/store"], check=True)
        with connect(socket, autostart=False, fallback=False) as pool:
            compile_all(pool, bundled(WARM_WITH))
            try:
                yield pool
            finally:
                pool.stop(now=True)


@contextlib.contextmanager
def computing(count: int) -> Iterator[None]:
    """So many processes that only compute."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: sum(range(10**6))"]) for _ in range(count)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def compile_all(pool: Pool, kernels: list[Kernel]) -> list[Compiled]:
    """Compile without loading; the answers."""
    answers = [future.result() for future in [pool.warm(k.name, k.source, priority="foreground") for k in kernels]]
    return [answer for answer in answers if isinstance(answer, Compiled)]


def run_clients(count: int, *arguments: str) -> list[dict[str, float]]:
    """Run so many client processes, let them start together, and collect what they print."""
    command = [sys.executable, "-m", "benchmarks.client", *arguments]
    clients = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
    ]
    for client in clients:
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"
    for client in clients:
        assert client.stdin is not None
        client.stdin.write("go\n")
        client.stdin.flush()
    return [json.loads(client.communicate()[0]) for client in clients]


def measure_pool(corpus: str, clients: int) -> Row:
    """One case through compilepool."""
    with daemon() as pool:
        before, status = cpu_of(pool.status()), pool.status()
        told = run_clients(clients, "pool", status.socket, corpus)
        after = pool.status()
        distinct = after.cpu_seconds - status.cpu_seconds
        jobs = after.counters["jobs_compiled"] - status.counters["jobs_compiled"]
        everything = cpu_of(after) - before + sum(t["cpu"] for t in told)
    return row(corpus, clients, "compilepool", told, everything, distinct / CORES, jobs)


def measure_stock(corpus: str, clients: int, floor: float) -> Row:
    """One case through torch's SubprocPool in each client."""
    told = run_clients(clients, "stock", str(CORES), corpus)
    jobs = clients * len(bundled(corpus))
    return row(corpus, clients, "torch SubprocPool", told, sum(t["cpu"] for t in told), floor, jobs)


def row(corpus: str, clients: int, pool: str, told: list[dict[str, float]], cpu: float, floor: float, jobs: int) -> Row:
    """The figures of one case: the earliest first answer, the latest last one."""
    answered, loaded = (max(t[name] for t in told) for name in ("answered", "loaded"))
    first = min(t["first"] for t in told)
    return Row(corpus, clients, pool, first, answered, loaded, cpu, floor, answered / floor, jobs)


def cpu_of(status: StatusReport) -> float:
    """CPU seconds so far of the daemon, its forkservers and their workers."""
    pids = [status.pid, *(int(text.split("pid ")[1].split(",")[0]) for text in status.forkservers)]
    return sum(sum(psutil.Process(pid).cpu_times()[:4]) for pid in pids)


def measure_overhead() -> dict[str, float]:
    """What a request costs beside its compile; milliseconds, medians, one request at a time.

    round_trip: a request whose worker fails at once: client, daemon, fork, exit and back
    hit: a request that the store answers
    beyond_compile: a compile's latency at the client less what the same kernel takes in a process that is warm
    """
    kernels = variants()
    with daemon() as pool:
        failing = [timed(pool, Kernel(f"fails_{n}", "raise ValueError")) for n in range(30)]
        compiled = [timed(pool, kernel) for kernel in kernels]
        hits = [timed(pool, kernel) for kernel in kernels]
    command = [sys.executable, "-m", "benchmarks.in_process"]
    own = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    beyond = [seconds - alone for seconds, alone in zip(compiled, own, strict=True)]
    return {
        "round_trip": 1000 * statistics.median(failing),
        "hit": 1000 * statistics.median(hits),
        "beyond_compile": 1000 * statistics.median(beyond),
    }


def timed(pool: Pool, kernel: Kernel) -> float:
    """Seconds from request to answer, of whatever kind it is."""
    started = time.monotonic()
    pool.warm(kernel.name, kernel.source, priority="foreground").exception()
    return time.monotonic() - started


def table(rows: list[Row]) -> Table:
    """The rows for a person."""
    shown = Table(title=f"{CORES} cores; seconds")
    for name in ("corpus", "clients", "pool", "first", "all", "loaded", "CPU", "floor", "all / floor", "compiles"):
        shown.add_column(name, justify="left" if name in ("corpus", "pool") else "right")
    for r in rows:
        figures = [f"{value:.2f}" for value in (r.first, r.answered, r.loaded, r.cpu, r.floor, r.ratio)]
        shown.add_row(r.corpus, str(r.clients), r.pool, *figures, str(r.jobs))
    return shown


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--corpus", nargs="+", default=["llama_train", "resnet50_train"])
    parser.add_argument("--beside", type=int, default=0, metavar="N")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    console = Console(width=120)
    with computing(options.beside):
        overhead = measure_overhead()
        for name, milliseconds in overhead.items():
            console.print(f"{name}: {milliseconds:.2f} ms")
        rows: list[Row] = []
        for corpus in options.corpus:
            for clients in options.clients:
                rows.append(measure_pool(corpus, clients))
                rows.append(measure_stock(corpus, clients, rows[-1].floor))
                # As far as it has come: a run of minutes that is cut short must not be lost.
                console.print(table(rows[-2:]))
                save(options.json, rows, overhead)
    console.print(table(rows))


def save(path: Path | None, rows: list[Row], overhead: dict[str, float]) -> None:
    """Write the figures as JSON, if a file was asked for."""
    if path:
        machine = {"cores": CORES, "python": platform.python_version()}
        told = {"machine": machine, "rows": [asdict(r) for r in rows], "overhead_ms": overhead}
        path.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
