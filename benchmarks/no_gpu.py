"""torch's own compile job, where there is no GPU that its workers could ask for a driver."""

from collections.abc import Callable
from typing import Any

from torch._inductor.runtime.compile_tasks import _worker_compile_triton

from compilepool.daemon.worker.headless import headless


def without_gpu(load_kernel: Callable[[], Any], environment: dict[str, str], settings: dict[str, Any]) -> Any:
    """`_worker_compile_triton`, with nobody asking for a driver."""
    with headless():
        return _worker_compile_triton(load_kernel, environment, settings)
