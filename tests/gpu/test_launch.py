"""On an NVIDIA GPU: kernels that came through the daemon launch and compute what eager torch computes."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from compilepool.client import Pool
from compilepool.corpus import bundled, bundled_names
from compilepool.protocol.messages import Compiled
from tests.conftest import Daemon
from tests.sources import pointwise

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    # torch's own, of its own: what a GPU build says of its dependencies is not this project's to mend.
    pytest.mark.filterwarnings("ignore"),
]


def agree(
    function: Callable[..., Any], *inputs: torch.Tensor, mode: str | None = None, tolerance: float = 1e-4
) -> None:
    expected = function(*inputs)
    actual = torch.compile(function, mode=mode, fullgraph=True)(*inputs)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def test_pointwise(compiled: list[str], no_parent_compile: list[str]) -> None:
    agree(lambda x, y: torch.sin(x) * y + 1, *(torch.randn(1000, 1000, device="cuda") for _ in range(2)))
    assert any(name.startswith("triton_poi") for name in compiled)
    assert no_parent_compile == []


def test_reduction(compiled: list[str], no_parent_compile: list[str]) -> None:
    agree(lambda x: (x * 2).sum(dim=1), torch.randn(512, 40_000, device="cuda"), tolerance=1e-2)
    assert any(name.startswith("triton_red") for name in compiled)
    assert no_parent_compile == []


def test_persistent_reduction(compiled: list[str], no_parent_compile: list[str]) -> None:
    agree(lambda x: torch.softmax(x, dim=-1), torch.randn(4096, 512, device="cuda"))
    assert any(name.startswith("triton_per") for name in compiled)
    assert no_parent_compile == []


def test_template(compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._inductor.config, "max_autotune_gemm_backends", "TRITON")
    monkeypatch.setattr(torch._inductor.config, "max_autotune", True)
    a, b = (torch.randn(512, 512, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    agree(torch.mm, a, b, tolerance=3e-2)
    assert any(name.startswith("triton_tem") for name in compiled)


def test_backward_of_a_layer_norm(compiled: list[str], no_parent_compile: list[str]) -> None:
    def step(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.layer_norm(x, (1024,), weight).square().mean()
        (gradient,) = torch.autograd.grad(y, [weight])
        return gradient

    x, weight = torch.randn(4096, 1024, device="cuda"), torch.randn(1024, device="cuda", requires_grad=True)
    expected = step(x, weight)
    loss = torch.compile(lambda x, w: torch.nn.functional.layer_norm(x, (1024,), w).square().mean())(x, weight)
    (actual,) = torch.autograd.grad(loss, [weight])
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)
    assert len(compiled) >= 2
    assert no_parent_compile == []


def test_the_smaller_blocks_and_registers_are_those_that_the_driver_leads_to(shared_daemon: Daemon) -> None:
    """For every recorded reduction: what torch compiles in a process that has loaded it, and what its driver says."""
    from torch._inductor.codecache import _load_triton_kernel_from_source

    kernels = [k for k in bundled(*bundled_names()) if "triton_heuristics.reduction" in k.source]
    assert len(kernels) >= 40
    scaled = 0
    with shared_daemon.pool() as pool:
        answers = [pool.warm(kernel.name, kernel.source) for kernel in kernels]
        for kernel, future in zip(kernels, answers, strict=True):
            answer = future.result(timeout=240)
            assert isinstance(answer, Compiled)
            own = _load_triton_kernel_from_source(kernel.name, kernel.source)
            configs = len(own.configs)
            own.precompile(warm_cache_only=False)
            said = [(unit.config, unit.registers, unit.spills) for unit in answer.contents.units]
            assert said == [(str(made.config), made.n_regs, made.n_spills) for made in own.launchers], kernel.name
            scaled += len(said) > configs
    assert scaled, "no kernel had its block scaled: this proves nothing"


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_second_gpu_launches_what_the_first_one_caused(
    compiled: list[str],
    no_parent_compile: list[str],
    shared_daemon: Daemon,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x.cos(), -1) + (x * 3).sum(0)

    x = torch.randn(777, 333)
    outputs, units = [], []
    for index in range(2):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / f"rank-{index}"))
        monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
        torch.compiler.reset()
        with torch.cuda.device(index):
            outputs.append(torch.compile(function)(x.to(f"cuda:{index}")))
        units.append(shared_daemon.status().counters["units_compiled"])
    assert units[0] == units[1]
    assert [output.device.index for output in outputs] == [0, 1]
    torch.testing.assert_close(outputs[0].cpu(), outputs[1].cpu())
    torch.testing.assert_close(outputs[1].cpu(), function(x), rtol=1e-3, atol=1e-3)
    assert no_parent_compile == []


# Executed in a worker: when the kernel has been compiled, say what the worker has mapped, opened and started. A worker
# writes no files: the error's message says it.
_SPY = """
def _spied(*arguments, precompile=NAME.precompile, **options):
    import json, os
    precompile(*arguments, **options)
    maps = {line.split()[-1] for line in open("/proc/self/maps") if "/" in line}
    seen = {"maps": sorted(os.path.basename(path) for path in maps if ".so" in path),
            "tasks": os.listdir("/proc/self/task"),
            "files": [os.readlink(f"/proc/self/fd/{d}") for d in os.listdir("/proc/self/fd")
                      if os.path.lexists(f"/proc/self/fd/{d}")]}
    raise RuntimeError("<" + json.dumps(seen) + ">")
NAME.precompile = _spied
"""
_DEVICE_FILE = re.compile("/dev/(nvidia|dri)")
_DRIVER = re.compile(r"libcuda\.so|libnvidia-|libnvcuvid")


def touched_gpu(maps: str, files: list[str]) -> list[str]:
    """The driver's libraries and device files among these."""
    return [*_DRIVER.findall(maps), *(file for file in files if _DEVICE_FILE.match(file))]


def test_no_process_of_the_pool_touches_the_gpu(shared_daemon: Daemon) -> None:
    torch.zeros(1, device="cuda")
    assert touched_gpu(Path("/proc/self/maps").read_text(), []), "this check must be able to find a driver"
    kernel = pointwise("spied")
    spy = _SPY.replace("NAME", "spied")
    with shared_daemon.pool() as pool:
        said = str(pool.warm("spied", kernel.source + spy).exception(timeout=240))
        seen = json.loads(said.split("<", 1)[1].split(">")[0])
        assert touched_gpu("\n".join(seen["maps"]), seen["files"]) == []
        assert any("libtriton" in name for name in seen["maps"])
        assert len(seen["tasks"]) == 1
        forkservers = shared_daemon.forkservers()
        for process in (*forkservers, psutil.Process(shared_daemon.process.pid)):
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            files = [str(link.readlink()) for link in Path(f"/proc/{process.pid}/fd").iterdir()]
            assert touched_gpu(maps, files) == []
        assert [forkserver.num_threads() for forkserver in forkservers] == [1] * len(forkservers)


def test_a_kernel_for_another_gpu_is_loaded_without_launchers(shared_daemon: Daemon) -> None:
    from compilepool.corpus import for_target

    kernel = for_target(pointwise("elsewhere"), "hip:gfx942")
    with shared_daemon.pool() as pool:
        autotuner = pool.compile_source(kernel.name, kernel.source).result(timeout=240)
    assert autotuner.launchers == []
    assert len(autotuner.compile_results) > 0


def test_it_launches_by_hand(shared_daemon: Daemon, compiled_pool: Pool) -> None:
    kernel = pointwise("by_hand", body="value * 3.0")
    major, minor = torch.cuda.get_device_capability()
    source = kernel.source.replace("cc=90, major=9", f"cc={10 * major + minor}, major={major}")
    autotuner = compiled_pool.compile_source("by_hand", source).result(timeout=240)
    x = torch.randn(65536, device="cuda")
    out = torch.empty_like(x)
    autotuner.run(x, out, x.numel(), stream=torch.cuda.current_stream().cuda_stream)
    torch.testing.assert_close(out, x * 3)


@pytest.fixture
def compiled_pool(shared_daemon: Daemon) -> Iterator[Pool]:
    with shared_daemon.pool() as pool:
        yield pool
