"""What the pool costs while nobody needs it.

    python -m benchmarks.idle [--seconds 30] [--json FILE]

ready: from starting the process to the socket's answer, median of 10, in milliseconds
rss: of the daemon, fresh and after it has moved two hundred results, in MiB
wakeups: context switches of daemon and forkserver while idle for so many seconds (/proc/PID/status)
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.pool import compile_all
from compilepool.client import Pool, connect
from compilepool.corpus import bundled


def start(folder: Path) -> tuple[Pool, float]:
    """A daemon in `folder`, and the seconds until it answered."""
    socket = folder / "pool.sock"
    options = ["--detach", "--idle-exit", "60", "--socket", str(socket), "--store", str(folder / "store")]
    started = time.monotonic()
    subprocess.run([sys.executable, "-P", "-m", "compilepool", "serve", *options], check=True)
    pool = connect(socket, autostart=False, fallback=False)
    pool.status()
    return pool, time.monotonic() - started


def stop(pool: Pool) -> None:
    """End a daemon and the connection to it."""
    pool.stop(now=True)
    pool.close()


def start_milliseconds() -> float:
    """Start and stop one."""
    with tempfile.TemporaryDirectory(prefix="compilepool-bench-") as folder:
        pool, seconds = start(Path(folder))
        stop(pool)
    return 1000 * seconds


def switches(process: psutil.Process) -> int:
    """Context switches so far, of all threads."""
    status = (Path(f"/proc/{process.pid}/task") / str(task.id) / "status" for task in process.threads())
    lines = [line for path in status for line in path.read_text().splitlines() if "ctxt_switches" in line]
    return sum(int(line.split()[1]) for line in lines)


def mebibytes(process: psutil.Process) -> float:
    """Resident memory."""
    return float(process.memory_info().rss) / 2**20


def measure(seconds: float) -> dict[str, float]:
    """All figures; see the module's docstring."""
    told = {"ready_ms": statistics.median(start_milliseconds() for _ in range(10))}
    with tempfile.TemporaryDirectory(prefix="compilepool-bench-") as folder:
        pool, _ = start(Path(folder))
        daemon = psutil.Process(pool.status().pid)
        told["daemon_rss_mib"] = mebibytes(daemon)
        for _ in range(2):
            compile_all(pool, bundled("resnet50_train", "llama_train"))
        (described,) = pool.status().forkservers
        forkserver = psutil.Process(int(described.split("pid ")[1].split(",")[0]))
        told["daemon_rss_after_mib"] = mebibytes(daemon)
        told["forkserver_rss_mib"] = mebibytes(forkserver)
        time.sleep(2)
        before = switches(daemon), switches(forkserver)
        time.sleep(seconds)
        told["daemon_wakeups"] = switches(daemon) - before[0]
        told["forkserver_wakeups"] = switches(forkserver) - before[1]
        stop(pool)
    return told


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    told = measure(options.seconds)
    for name, value in told.items():
        print(f"{name}: {value:.1f}")
    if options.json:
        options.json.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
