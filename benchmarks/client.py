"""One client process of a benchmark: imports torch, says 'ready', waits for a line, compiles, prints JSON.

    python -m benchmarks.client pool SOCKET CORPUS...     through compilepool
    python -m benchmarks.client stock CORES CORPUS...     through a SubprocPool of its own, as torch.compile does

Printed: seconds until the first and the last answer was here, and until the last kernel was loaded (where there is a
GPU, with launchers: torch may then compile a scaled config in this process, with either pool); and the CPU seconds that
this process and everything below it took.
"""

import functools
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
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
from compilepool.reload import can_launch

Load = Callable[[], Any]


def through_stock(cores: int, kernels: list[Kernel]) -> Iterator[tuple["Future[Any]", Load]]:
    """Submit as `AsyncCompile.triton` does, to a pool that starts now, and load as its `get_result` does."""
    pool = SubprocPool(cores)
    job = _worker_compile_triton if torch.cuda.is_available() else without_gpu
    environment = {name: os.environ[name] for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
    for kernel in kernels:
        load = functools.partial(_load_triton_kernel_from_source, kernel.name, kernel.source)
        future = pool.submit(job, load, environment, {"use_static_triton_launcher": True})
        yield future, functools.partial(load_stock, future, load)


def load_stock(future: "Future[Any]", load: Load) -> None:
    """What torch does with its pool's answer."""
    autotuner, _ = future.result()
    autotuner.restore_after_unpickle(old_values=None)
    if can_launch(autotuner):
        autotuner.precompile(warm_cache_only=False, reload_kernel=load)


def through_pool(socket: str, kernels: list[Kernel]) -> Iterator[tuple["Future[Any]", Load]]:
    """Submit to the daemon."""
    pool = connect(socket, autostart=False, fallback=False)
    for kernel in kernels:
        future = pool.compile_source(kernel.name, kernel.source)
        yield future, future.result


def main() -> None:
    """See the module's docstring."""
    how, where, *names = sys.argv[1:]
    kernels = bundled(*names)
    folder = tempfile.mkdtemp(prefix="compilepool-bench-")
    os.environ.update(TORCHINDUCTOR_CACHE_DIR=f"{folder}/inductor", TRITON_CACHE_DIR=f"{folder}/triton")
    print("ready", flush=True)
    sys.stdin.readline()
    started, before = time.monotonic(), _cpu_seconds()
    submitted = dict(through_stock(int(where), kernels) if how == "stock" else through_pool(where, kernels))
    answered: list[float] = []
    for future in submitted:
        future.add_done_callback(lambda _: answered.append(time.monotonic() - started))
    for future in as_completed(submitted):
        submitted[future]()
    told = {"first": min(answered), "answered": max(answered), "loaded": time.monotonic() - started}
    told["cpu"] = _cpu_seconds() - before
    print(json.dumps(told), flush=True)
    # What stock pools leave running is not worth waiting for.
    for process in psutil.Process().children(recursive=True):
        process.kill()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _cpu_seconds() -> float:
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(process.cpu_times()[:4]) for process in processes)


if __name__ == "__main__":
    main()
