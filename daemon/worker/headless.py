"""Stands in for the GPU while kernels compile: nobody asks a driver, so no GPU is touched and none is needed.

What touches a GPU on the way of an Inductor kernel, and what answers here instead:

    `triton_helpers.set_driver_to_gpu()`      asks every backend's driver `is_active()`, which calls
                                              `torch.cuda.is_available()`, which calls cuInit: it opens /dev/nvidia*,
                                              maps libcuda.so and starts a thread. Here: the driver is set already.
    `triton.runtime.driver.active`            would build a driver and its C extension. Here: `HeadlessDriver`.
    `torch.cuda.is_available()`               decides configs of persistent reductions (triton_heuristics), so its
                                              answer must be that of the machine which will launch: True.

`HeadlessDriver` knows the target of the kernel that is being compiled, and refuses everything that needs a device.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import triton
from torch._inductor.runtime import triton_helpers
from triton.backends.compiler import GPUTarget

from compilepool.daemon.worker.driver import HeadlessDriver


@contextmanager
def headless() -> Iterator[HeadlessDriver]:
    """Compile without a GPU inside this block; everything is put back afterwards."""
    driver = HeadlessDriver(GPUTarget("cuda", 80, 32))
    config = triton.runtime.driver
    replaced: list[tuple[Any, str, Any]] = [
        (config, "_active", driver),
        (triton_helpers, "set_driver_to_gpu", lambda: None),
        (torch.cuda, "is_available", lambda: True),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    for owner, name, value in replaced:
        setattr(owner, name, value)
    try:
        yield driver
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
