"""A process that has a GPU to compile for, as far as Triton can tell, and none to launch on."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import max_shared_mem

from compilepool.client import Pool
from compilepool.daemon.worker.driver import HeadlessDriver
from compilepool.options import Options
from compilepool.triton.compiler import Compiler
from tests.conftest import Daemon

H100 = GPUTarget("cuda", 90, 32)


class Launch(NamedTuple):
    """What a launcher was called with."""

    kernel: str
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    num_warps: int


class Launcher:
    """Keeps what it is called with."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self._metadata = metadata

    def __call__(self, *told: Any) -> None:
        launches.append(Launch(self._metadata.name, told[:3], told[9:], self._metadata.num_warps))


class Utilities:
    """What Triton asks a driver to do with a binary."""

    most_shared = 232448

    def load_binary(self, *_: Any) -> tuple[Any, ...]:
        return object(), object(), 32, 0, 1024

    def get_device_properties(self, _device: int) -> dict[str, int]:
        return {"max_shared_mem": self.most_shared}


class Pretended(HeadlessDriver):
    """A device that can be compiled for, and whose launches do nothing."""

    launcher_cls = Launcher
    utils = Utilities()

    def get_current_stream(self, _device: int) -> int:
        return 0

    def set_current_device(self, _device: int) -> None:
        """There is one."""


launches: list[Launch] = []


@pytest.fixture(autouse=True)
def pretended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The Triton cache of a program with an H100."""
    monkeypatch.setattr(triton.runtime.driver, "_active", Pretended(H100))
    monkeypatch.setenv("COMPILEPOOL_TUNING_DIR", str(tmp_path / "tuning"))
    launches.clear()
    max_shared_mem.cache_clear()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="package")
def triton_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon for all of these tests."""
    daemon = Daemon(tmp_path_factory.mktemp("daemon"))
    yield daemon
    daemon.close()


@pytest.fixture
def compiler(triton_daemon: Daemon) -> Iterator[Compiler]:
    """Asks that daemon."""
    made = Compiler(Pool(Options(triton_daemon.socket, autostart=False, with_torch=False)))
    yield made
    made.close()


@pytest.fixture
def default(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """It is what this process asks."""
    monkeypatch.setattr("compilepool.triton.autotuner.default_compiler", lambda: compiler)
    monkeypatch.setattr("compilepool.triton.choosing.default_compiler", lambda: compiler)
    return compiler


@pytest.fixture
def compiles(triton_daemon: Daemon) -> Callable[[], int]:
    """How many compiles the daemon has had done since it was last asked."""
    before = triton_daemon.status().counters.get("jobs_compiled", 0)

    def count() -> int:
        nonlocal before
        last, before = before, triton_daemon.status().counters.get("jobs_compiled", 0)
        return before - last

    return count


def unit_of(kernel: Any) -> Any:
    """What the pool said of a kernel; None: it was not asked."""
    told = getattr(kernel, "_compilepool_unit", None)
    return told and told[0]
