"""What a kernel costs that the store has: for a program that has imported torch, and for the daemon.

    python -m benchmarks.hits [--kernels resnet50_train] [--rounds 5] [--json]

Everything is pinned to one core. The daemon is ready and has every kernel. Each round is a new program process: the
first finds an empty cache directory, the second what the first one left there. Seconds are those of handing over all
kernels and getting all autotuners; bytes are what the socket brought; the daemon's share is the time that its threads
ran (/proc/PID/schedstat) while one kernel after the other was asked for, per kernel, at the median.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from compilepool.client import connect
from compilepool.corpus import bundled
from compilepool.link import Link
from compilepool.spawn import run_command


@dataclass(frozen=True, slots=True)
class Round:
    """One program: seconds for all kernels, bytes that came, and the daemon's milliseconds for each, at the median."""

    seconds: float
    received: int
    daemon_ms: float


def ran(pid: int) -> float:
    """Seconds that a process's threads have run."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def be_program(socket: str, kernels: str) -> None:
    """Import torch, then ask for everything."""
    import torch._inductor.async_compile
    import torch._inductor.runtime.triton_heuristics  # noqa: F401

    received = 0
    original = Link._receive

    def counted(link: Link) -> bytes:
        nonlocal received
        chunk = original(link)
        received += len(chunk)
        return chunk

    Link._receive = counted  # type: ignore[assignment,method-assign]
    recorded = bundled(kernels)
    with connect(socket, autostart=False, fallback=False) as pool:
        # What is imported with the first kernel is the program's start, not the kernels'.
        pool.compile_source(recorded[0].name, recorded[0].source).result()
        before = received
        started = time.perf_counter()
        futures = [pool.compile_source(kernel.name, kernel.source) for kernel in recorded]
        for future in futures:
            future.result()
        seconds, received_all = time.perf_counter() - started, received - before
        pid, shares = pool.status().pid, []
        for kernel in recorded:
            share = ran(pid)
            pool.warm(kernel.name, kernel.source, priority="foreground").result()
            shares.append(1e3 * (ran(pid) - share))
    print(json.dumps(asdict(Round(seconds, received_all, statistics.median(shares)))))


def measure(socket: Path, kernels: str, cache: Path) -> Round:
    """One program with this cache directory."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache / "i"), "TRITON_CACHE_DIR": str(cache / "t")}
    command = [sys.executable, "-m", "benchmarks.hits", "--be", str(socket), "--kernels", kernels]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return Round(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Print a line for the first and the second program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", default="resnet50_train")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--be", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be:
        be_program(options.be, options.kernels)
        return
    recorded = bundled(options.kernels)
    rounds: dict[str, list[Round]] = {"empty": [], "filled": []}
    with tempfile.TemporaryDirectory(prefix="compilepool-hits-") as folder:
        socket = Path(folder) / "pool.sock"
        served = ("--idle-exit", "60", "--socket", str(socket), "--store", f"{folder}/store")
        run_command("serve", "--detach", *served, timeout=30)
        with connect(socket, autostart=False, fallback=False) as pool:
            for future in [pool.warm(kernel.name, kernel.source) for kernel in recorded]:
                future.result()
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
            os.sched_setaffinity(pool.status().pid, os.sched_getaffinity(0))
            for number in range(options.rounds):
                cache = Path(folder) / f"cache-{number}"
                rounds["empty"].append(measure(socket, options.kernels, cache))
                rounds["filled"].append(measure(socket, options.kernels, cache))
            pool.stop(now=True)
    if options.json:
        print(json.dumps({name: [asdict(one) for one in each] for name, each in rounds.items()}))
        return
    for name, each in rounds.items():
        seconds, share = statistics.median(r.seconds for r in each), statistics.median(r.daemon_ms for r in each)
        print(
            f"{options.kernels}, {len(recorded)} kernels, one core, {name} cache directory: {seconds:.2f} s for all, "
            f"{each[0].received / len(recorded) / 1024:.1f} KiB a kernel; the daemon ran {share:.2f} ms a kernel"
        )


if __name__ == "__main__":
    main()
