"""A Triton driver for a target and no device: whoever compiles asks it what for, and nobody asks the GPU."""

from typing import NoReturn

from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase


class NoDevice(RuntimeError):
    """A kernel's source asked for a device while it was compiled."""


class HeadlessDriver(DriverBase):  # type: ignore[misc]
    """A Triton driver for one target and no device."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target

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
