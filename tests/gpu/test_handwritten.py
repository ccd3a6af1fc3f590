"""On an NVIDIA GPU: kernels that were written by hand, tuned and launched by way of the pool."""

import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton

import compilepool
import compilepool.triton
from compilepool.client import Pool
from compilepool.options import Options
from compilepool.triton.compiler import Compiler
from tests.conftest import Daemon
from tests.handwritten import CASES, Case, add, matmul

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.fixture
def compiler(shared_daemon: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Compiler]:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COMPILEPOOL_TUNING_DIR", str(tmp_path / "tuning"))
    made = Compiler(Pool(Options(shared_daemon.socket, autostart=False, with_torch=False)))
    for module in ("autotuner", "choosing"):
        monkeypatch.setattr(f"compilepool.triton.{module}.default_compiler", lambda: made)
    torch.manual_seed(0)
    yield made
    made.close()


def quick(call: Callable[[], None], quantiles: Any = None) -> Any:
    return triton.testing.do_bench(call, warmup=2, rep=5, quantiles=quantiles)


def tuned(case: Case, **more: Any) -> Any:
    named = {"reset_to_zero": case.reset_to_zero, "do_bench": quick, **more}
    return compilepool.autotune(case.configs[:8], case.key, **named)(case.kernel)


def check(case: Case, compared: Callable[[], list[tuple[Any, Any]]]) -> None:
    for got, expected in compared():
        torch.testing.assert_close(got.float(), expected.float(), rtol=case.tolerance, atol=case.tolerance)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_results_are_those_of_torch(compiler: Compiler, case: Case) -> None:
    """After tuning, on the way that tuning leaves, and where the autotuner has arrived after a journey."""
    kernel = tuned(case)
    arrived: Any = None
    for turn in range(3):
        arguments, grid, compared = case.make(torch)
        (arrived or kernel)[grid](*arguments)
        check(case, compared)
        arrived = pickle.loads(pickle.dumps(kernel)) if turn == 1 else None
    assert all(made is not None for made in kernel.configs_timings)


def test_what_is_tuned_is_not_spoilt(compiler: Compiler) -> None:
    """A kernel that adds to what is there, without any hook that would put it back."""
    case = next(case for case in CASES if case.name == "split_k")
    arguments, grid, compared = case.make(torch)
    compilepool.autotune(case.configs[:4], case.key, do_bench=quick)(case.kernel)[grid](*arguments)
    check(case, compared)


def test_a_tensor_that_no_copy_fits_beside_is_put_back(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compilepool.triton.guard._free_bytes", lambda _: 0)
    test_what_is_tuned_is_not_spoilt(compiler)


def test_a_warm_up_leaves_the_first_launch_warm(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    add.device_caches.clear()
    x = torch.randn(1000, device="cuda")
    out = torch.empty_like(x)
    with compilepool.triton.Executor(compiler.pool) as executor, triton.AsyncCompileMode(executor):
        add.warmup(torch.float32, torch.float32, torch.float32, 1000, grid=(1,), BLOCK=1024)
    monkeypatch.setattr(type(add), "_do_compile", lambda *_, **__: pytest.fail("it was compiled at its launch"))
    add[(1,)](x, x, out, 1000, BLOCK=1024)
    torch.testing.assert_close(out, x + x)


@pytest.mark.filterwarnings("ignore")
def test_within_torch_compile(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = compilepool.autotune([triton.Config({"BLOCK": 256}), triton.Config({"BLOCK": 512})], key=["n"])(add)

    def program(x: Any, y: Any) -> Any:
        out, more = torch.empty_like(x), torch.empty_like(x)
        kernel[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](x, y, out, 1000)
        add[(1,)](out, y, more, 1000, BLOCK=1024)
        return more * 2

    x, y = torch.randn(1000, device="cuda"), torch.randn(1000, device="cuda")
    compilepool.triton.install(compiler=compiler)
    try:
        torch.testing.assert_close(torch.compile(program, fullgraph=True)(x, y), (x + y + y) * 2)
        torch.testing.assert_close(program(x, y), (x + y + y) * 2)
    finally:
        compilepool.triton.uninstall()


def test_a_launcher_launches_what_it_was_made_for(compiler: Compiler) -> None:
    case = next(case for case in CASES if case.name == "matmul")
    kernel = tuned(case)
    arguments, grid, compared = case.make(torch)
    launch = kernel.launcher(*arguments, grid=grid)
    arguments[2].zero_()
    launch(*arguments)
    check(case, compared)


_ELSEWHERE = """
import pickle, sys, torch
kernel, n = pickle.load(sys.stdin.buffer)
x = torch.arange(n, device="cuda", dtype=torch.float32)
out = torch.empty_like(x)
kernel[lambda meta: (-(-n // meta["BLOCK"]),)](x, x, out, n)
assert out.equal(x + x)
print(type(kernel._fn).__name__)
"""


def test_it_launches_in_another_process(compiler: Compiler) -> None:
    kernel = compilepool.autotune([triton.Config({"BLOCK": 256}), triton.Config({"BLOCK": 512})], key=["n"])(add)
    x = torch.randn(4096, device="cuda")
    kernel[lambda meta: (triton.cdiv(4096, meta["BLOCK"]),)](x, x, torch.empty_like(x), 4096)
    raw = pickle.dumps((kernel, 4096))
    root = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", _ELSEWHERE], input=raw, capture_output=True, check=False, cwd=root)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().strip() == "Reference", "no function was needed"


def test_matrices_of_odd_sizes_and_views(compiler: Compiler) -> None:
    case = next(case for case in CASES if case.name == "matmul")
    kernel = compilepool.autotune(case.configs[:2], key=[], do_bench=quick)(matmul)
    for m, n, k, shift in ((128, 128, 64, 0), (127, 65, 33, 0), (1, 1, 1, 0), (64, 64, 64, 1)):
        a = torch.randn(m * k + shift, device="cuda", dtype=torch.float16)[shift:].view(m, k)
        b = torch.randn(k, n, device="cuda", dtype=torch.float16)
        c = torch.empty(m, n, device="cuda", dtype=torch.float16)
        for _ in range(2):
            c.zero_()
            kernel[_grid](a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride())
            torch.testing.assert_close(c, a @ b, rtol=2e-2, atol=2e-2)


def _grid(meta: dict[str, Any]) -> tuple[int, ...]:
    return (triton.cdiv(meta["M"], meta["BLOCK_M"]) * triton.cdiv(meta["N"], meta["BLOCK_N"]),)
