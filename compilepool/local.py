"""What a client does when there is no pool: compile in this process, as torch does without compile workers."""

import threading
from typing import Any

import torch
from torch._inductor.codecache import _load_triton_kernel_from_source
from torch._inductor.runtime.compile_tasks import _set_triton_ptxas_path

from compilepool.daemon.worker.compile import target_of
from compilepool.daemon.worker.headless import headless
from compilepool.protocol.errors import CompileError

# torch's own in-process path is not for several threads at once either.
_one_at_a_time = threading.Lock()


def compile_locally(name: str, source: str) -> Any:
    """The CachingAutotuner of a kernel, compiled here; raises CompileError with the compiler's message."""
    try:
        with _one_at_a_time:
            _set_triton_ptxas_path()
            return _compile_with_gpu(name, source) if torch.cuda.is_available() else _compile_without(name, source)
    except Exception as exc:
        raise CompileError(f"{type(exc).__name__}: {exc}", name) from exc


def _compile_with_gpu(name: str, source: str) -> Any:
    autotuner = _load_triton_kernel_from_source(name, source)
    autotuner.precompile(warm_cache_only=False)
    return autotuner


def _compile_without(name: str, source: str) -> Any:
    with headless() as driver:
        autotuner = _load_triton_kernel_from_source(name, source)
        driver.target = target_of(autotuner)
        autotuner.precompile(warm_cache_only=True)
    return autotuner
