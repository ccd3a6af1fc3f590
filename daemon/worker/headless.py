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
from typing import Any, NoReturn

import torch
import triton
from torch._inductor.runtime import triton_helpers
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase


class NoDevice(RuntimeError):
    """A kernel's source asked for a device while it was compiled."""


class HeadlessDriver(DriverBase):  # type: ignore[misc]
    """A Triton driver for one target and no device."""

    def __init__(self) -> None:
        self.target = GPUTarget("cuda", 80, 32)

    @classmethod
    def is_active(cls) -> bool:
        """Never chosen by looking for devices."""
        return False

    def get_current_target(self) -> GPUTarget:
        """The target of the kernel that is being compiled."""
        return self.target

    def get_current_device(self) -> int:
        """The first, as in every process that sees one GPU."""
        return 0

    def map_python_to_cpp_type(self, ty: str) -> NoReturn:
        """Only launchers need it."""
        self._refuse(f"the C++ type of {ty}")

    def get_active_torch_device(self) -> NoReturn:
        """There is none."""
        self._refuse("a torch device")

    def get_benchmarker(self) -> NoReturn:
        """Nothing can be measured."""
        self._refuse("a benchmark")

    def __getattr__(self, name: str) -> NoReturn:
        self._refuse(name)

    def _refuse(self, what: str) -> NoReturn:
        raise NoDevice(f"{what} was asked of the GPU driver, and kernels are compiled here without a GPU")


@contextmanager
def headless() -> Iterator[HeadlessDriver]:
    """Compile without a GPU inside this block; everything is put back afterwards."""
    driver = HeadlessDriver()
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
