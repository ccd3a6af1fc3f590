"""The pool's binaries are those that torch makes in a process of its own, byte for byte."""

import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compilepool.corpus import Kernel, bundled, bundled_names, for_target
from compilepool.protocol.detect import package_root
from compilepool.protocol.messages import Compiled
from tests.conftest import Daemon

# Every kind of kernel: all recorded files but the large one, of which two dozen.
SAMPLE = [k for name in bundled_names() if name not in ("resnet50_train", "max_autotune_mm") for k in bundled(name)]
SAMPLE += bundled("resnet50_train")[::20] + bundled("max_autotune_mm")[::9]


@pytest.fixture
def in_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Kernel], dict[str, bytes]]:
    """Compiles in this process, with a Triton cache of its own for each kernel, so that nothing is found in one."""
    numbers = itertools.count()

    def compile_here(kernel: Kernel) -> dict[str, bytes]:
        with monkeypatch.context() as patch:
            patch.setenv("TRITON_CACHE_DIR", str(tmp_path / str(next(numbers))))
            return compiled_here(kernel)

    return compile_here


def compiled_here(kernel: Kernel) -> dict[str, bytes]:
    """Binaries by config, made by torch's own loader and `CachingAutotuner.precompile` in this process."""
    from torch._inductor.codecache import PyCodeCache, _load_triton_kernel_from_source

    from compilepool.daemon.worker.compile import target_of
    from compilepool.daemon.worker.headless import headless

    with headless() as driver:
        autotuner = _load_triton_kernel_from_source(kernel.name, kernel.source)
        driver.target = target_of(autotuner)
        # ptxas writes the source file's modification time into the line table, if it finds the file.
        Path(PyCodeCache.write(kernel.source)[1]).unlink()
        autotuner.precompile(warm_cache_only=True)
        add_scaled(autotuner)
    return {str(result.config): binary_of(result.kernel) for result in autotuner.compile_results}


def add_scaled(autotuner: Any) -> None:
    """What torch adds once it has loaded the kernels, with register counts from NVIDIA's own tool."""
    for result in autotuner.compile_results:
        result.kernel.n_regs = registers(binary_of(result.kernel), autotuner.device_props.type)
    autotuner._make_launchers = lambda: None
    autotuner._dynamic_scale_rblock()


def registers(binary: bytes, kind: str) -> int:
    """Of one thread; by `cuobjdump`, or, for AMD, by the reader that is tested elsewhere."""
    if kind == "hip":
        from compilepool.daemon.worker.binary import read_hsaco

        taken = read_hsaco(binary)
        assert taken is not None
        return taken.registers
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [str(package_root("triton") / "backends/nvidia/bin/cuobjdump"), "-res-usage", file.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (count,) = re.findall(r"REG:(\d+)", told)
    return int(count)


def binary_of(kernel: Any) -> bytes:
    """The device binary that a compiled or statically launched kernel holds."""
    raw = getattr(kernel, "cubin_raw", None)
    return bytes(raw if raw is not None else kernel.kernel)


@pytest.fixture
def fresh_daemon(daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    """A daemon with an empty store, beside an Inductor cache that holds no source: each would show in line tables."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    return daemon


@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942"])
def test_binaries_are_identical(
    fresh_daemon: Daemon, target: str, in_process: Callable[[Kernel], dict[str, bytes]]
) -> None:
    kernels = [for_target(kernel, target) for kernel in SAMPLE]
    assert len(kernels) >= 40
    with fresh_daemon.pool() as pool:
        futures = [pool.compile_source(kernel.name, kernel.source) for kernel in kernels]
        for kernel, future in zip(kernels, futures, strict=True):
            autotuner = future.result(timeout=240)
            made = {str(result.config): binary_of(result.kernel) for result in autotuner.compile_results}
            assert made == in_process(kernel), f"{kernel.name} differs"


@pytest.mark.slow
def test_every_recorded_kernel_has_every_config(
    shared_daemon: Daemon, in_process: Callable[[Kernel], dict[str, bytes]]
) -> None:
    kernels = bundled(*bundled_names())
    with shared_daemon.pool() as pool:
        futures = [pool.warm(kernel.name, kernel.source) for kernel in kernels]
        for kernel, future in zip(kernels, futures, strict=True):
            answer = future.result(timeout=240)
            assert isinstance(answer, Compiled)
            assert [unit.config for unit in answer.contents.units] == list(in_process(kernel)), kernel.name


def test_the_ptxas_is_the_one_that_torchs_own_workers_use(shared_daemon: Daemon) -> None:
    """torch's CUDA builds bring one; Triton's keys have its version."""
    code = (
        "from torch._inductor.runtime import compile_tasks\n"
        "compile_tasks._set_triton_ptxas_path()\n"
        "from triton import knobs\n"
        "print(knobs.nvidia.ptxas.path)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_PTXAS_PATH"}
    torchs = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    source = "from triton import knobs\nraise RuntimeError(f'<{knobs.nvidia.ptxas.path}>')\n"
    with shared_daemon.pool() as pool:
        said = str(pool.warm("which", source).exception(timeout=120))
    assert f"<{torchs.stdout.strip()}>" in said
