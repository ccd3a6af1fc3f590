"""A process that has a GPU to compile for, as far as Triton can tell, and none to launch on."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget

from compilepool.client import Pool
from compilepool.daemon.worker.driver import HeadlessDriver
from compilepool.options import Options
from compilepool.triton.compiler import Compiler
from tests.conftest import Daemon

H100 = GPUTarget("cuda", 90, 32)


class Pretended(HeadlessDriver):
    """A device that can be compiled for."""

    def get_current_stream(self, _device: int) -> int:
        return 0


@pytest.fixture(autouse=True)
def pretended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The Triton cache of a program with an H100."""
    monkeypatch.setattr(triton.runtime.driver, "_active", Pretended(H100))
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
def compiles(triton_daemon: Daemon) -> Callable[[], int]:
    """How many compiles the daemon has had done since it was last asked."""
    before = triton_daemon.status().counters["jobs_compiled"]

    def count() -> int:
        nonlocal before
        last, before = before, triton_daemon.status().counters["jobs_compiled"]
        return before - last

    return count


def unit_of(kernel: Any) -> Any:
    """What the pool said of a kernel; None: it was not asked."""
    told = getattr(kernel, "_compilepool_unit", None)
    return told and told[0]
