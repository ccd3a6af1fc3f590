"""One client process of a benchmark: imports torch, says 'ready', waits for a line, compiles, prints JSON.

    python -m benchmarks.client pool SOCKET CORPUS...     through compilepool
    python -m benchmarks.client stock CORES CORPUS...     through a SubprocPool of its own, as torch.compile does

Printed: seconds until the first and the last kernel was unpickled here, and the CPU seconds that this process and
everything below it took for that.
"""

import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, as_completed
from typing import Any

import psutil
import torch
from torch._inductor.codecache import _load_triton_kernel_from_source
from torch._inductor.compile_worker.subproc_pool import SubprocPool
from torch._inductor.runtime.compile_tasks import _worker_compile_triton

from benchmarks.no_gpu import without_gpu
from compilepool.client import connect
from compilepool.corpus import Kernel, bundled


def through_stock(cores: int, kernels: list[Kernel]) -> Iterator["Future[Any]"]:
    """Submit as `AsyncCompile.triton` does, to a pool that starts now."""
    pool = SubprocPool(cores)
    job = _worker_compile_triton if torch.cuda.is_available() else without_gpu
    environment = {name: os.environ[name] for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
    for kernel in kernels:
        load = functools.partial(_load_triton_kernel_from_source, kernel.name, kernel.source)
        yield pool.submit(job, load, environment, {"use_static_triton_launcher": True})


def through_pool(socket: str, kernels: list[Kernel]) -> Iterator["Future[Any]"]:
    """Submit to the daemon."""
    pool = connect(socket, autostart=False, fallback=False)
    for kernel in kernels:
        yield pool.compile_source(kernel.name, kernel.source)


def main() -> None:
    """See the module's docstring."""
    how, where, *names = sys.argv[1:]
    kernels = bundled(*names)
    folder = tempfile.mkdtemp(prefix="compilepool-bench-")
    os.environ.update(TORCHINDUCTOR_CACHE_DIR=f"{folder}/inductor", TRITON_CACHE_DIR=f"{folder}/triton")
    print("ready", flush=True)
    sys.stdin.readline()
    started, first, before = time.monotonic(), 0.0, _cpu_seconds()
    futures = through_stock(int(where), kernels) if how == "stock" else through_pool(where, kernels)
    for future in as_completed(list(futures)):
        future.result()
        first = first or time.monotonic() - started
    told = {"first": first, "wall": time.monotonic() - started, "cpu": _cpu_seconds() - before}
    print(json.dumps(told), flush=True)
    # What stock pools leave running is not worth waiting for.
    for process in psutil.Process().children(recursive=True):
        process.kill()
    os._exit(0)


def _cpu_seconds() -> float:
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(process.cpu_times()[:4]) for process in processes)


if __name__ == "__main__":
    main()
