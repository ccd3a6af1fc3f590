"""Kernels that were written by hand, compiled by a real daemon: the same bytes, Triton's own objects and errors."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource, CompiledKernel
from triton.compiler.errors import CompilationError

import compilepool.triton
from compilepool.client import Pool
from compilepool.daemon.worker import parcel
from compilepool.options import Options
from compilepool.protocol.errors import CompileTimeout
from compilepool.triton.compilation import Compilation
from compilepool.triton.compiler import Compiler
from tests.conftest import Daemon
from tests.handwritten import CASES, Case, add, matmul, matmul_configs
from tests.triton.conftest import H100, unit_of

TARGETS = [
    GPUTarget("cuda", 80, 32),
    GPUTarget("cuda", 90, 32),
    GPUTarget("cuda", 100, 32),
    GPUTarget("hip", "gfx942", 64),
]


def compilation(case: Case, target: GPUTarget, number: int = 0) -> Compilation:
    config = case.configs[number]
    signature = {name: case.signature.get(name, "constexpr") for name in case.kernel.arg_names}
    source = ASTSource(case.kernel, signature, {**case.fixed, **config.kwargs})
    return Compilation(source, target, {"num_warps": config.num_warps, "num_stages": config.num_stages})


def files(cache: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(cache)): path.read_bytes()
        for path in sorted(cache.rglob("*"))
        if path.is_file() and not path.name.startswith("__grp__")
    }


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: f"{target.backend}:{target.arch}")
def test_the_cache_is_as_triton_would_have_left_it(
    compiler: Compiler, target: GPUTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    futures = [compiler.submit(compilation(case, target)) for case in CASES]
    for case, kernel in zip(CASES, [future.result(timeout=200) for future in futures], strict=True):
        assert type(kernel) is CompiledKernel
        unit = unit_of(kernel)
        assert unit is not None and unit.registers > 0, case.name
        assert unit.spills == 0 or case.name not in ("add", "softmax")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "own"))
    for case in CASES:
        compilation(case, target).make()
    pooled, own = files(tmp_path / "cache"), files(tmp_path / "own")
    # CUDA's ptxas for Blackwell makes either of two binaries of the same PTX, which differ by two registers' names.
    varies = {name for name in own if target.arch == 100 and name.endswith(".cubin")}
    assert [name for name in own if pooled[name] != own[name] and name not in varies] == []
    assert {name: len(raw) for name, raw in pooled.items()} == {name: len(raw) for name, raw in own.items()}


def test_what_can_not_be_sent_is_sent_as_ttir_with_the_same_result(
    compiler: Compiler, pretended: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = compilation(CASES[2], H100, 3)

    def refuse(*_: Any) -> bytes:
        raise parcel.NotPortable("no")

    monkeypatch.setattr("compilepool.triton.compilation.seal", refuse)
    kernel = compiler.submit(wanted).result(timeout=100)
    assert unit_of(kernel).files and wanted.request()[0].ttir
    assert unit_of(kernel) is not None
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "own"))
    wanted.make()
    own = {name: raw for name, raw in files(tmp_path / "own").items() if not name.endswith(".source")}
    assert files(pretended) == own


def test_a_mode_of_tritons_leaves_kernels_ready_to_launch(compiler: Compiler) -> None:
    add.device_caches.clear()
    with compilepool.triton.Executor(compiler.pool) as executor, triton.AsyncCompileMode(executor):
        for block in (64, 128):
            add.warmup(torch.float32, torch.float32, torch.float32, 1000, grid=(1,), BLOCK=block)
    # Until Triton 3.7, what is kept is what the mode gave out.
    kept = add.device_caches[0][0].values()
    ready = [kernel if isinstance(kernel, CompiledKernel) else kernel.result() for kernel in kept]
    assert len(ready) == 2 and all(unit_of(kernel) for kernel in ready)


def test_other_callables_are_called_in_a_worker(compiler: Compiler) -> None:
    with compilepool.triton.Executor(compiler.pool) as executor:
        assert executor.submit(lambda a, *, b: (a + b, os.getpid()), 1, b=2).result(timeout=100)[0] == 3
        assert executor.submit(os.getpid).result(timeout=100) != os.getpid()
        assert list(executor.map(abs, [-1, 2])) == [1, 2]
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(os.getpid)


def test_installed_every_kernel_asks(compiler: Compiler, compiles: Callable[[], int]) -> None:
    def compile_one(block: int) -> Any:
        return add.warmup(torch.float16, torch.float16, torch.float16, 9, grid=(1,), BLOCK=block)

    own = compile_one(32)
    compilepool.triton.install(compiler=compiler)
    try:
        assert compilepool.triton.is_installed()
        assert unit_of(compile_one(64)) is not None and unit_of(compile_one(32)) is None
        assert compiles() == 1
    finally:
        compilepool.triton.uninstall()
    assert unit_of(compile_one(128)) is None and compiles() == 0
    assert own.hash != compile_one(64).hash


@triton.jit
def wrong(out, BLOCK: tl.constexpr):  # noqa: N803
    tl.store(out + tl.arange(0, BLOCK), not_defined)  # type: ignore[name-defined]  # noqa: F821


@triton.jit
def too_long(out, TIMES: tl.constexpr):  # noqa: N803
    for i in tl.static_range(TIMES):
        tl.store(out + i, tl.load(out + i) + 1)


def test_an_error_is_tritons_own(compiler: Compiler) -> None:
    source = ASTSource(wrong, {"out": "*fp32", "BLOCK": "constexpr"}, {"BLOCK": 64})
    with pytest.raises(CompilationError, match="not_defined is not defined"):
        compiler.submit(Compilation(source, H100, {})).result(timeout=100)


def test_a_kernel_that_takes_too_long_is_not_compiled_here_as_well(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, "--timeout", "1")
    compiler = Compiler(Pool(Options(daemon.socket, autostart=False, with_torch=False)))
    source = ASTSource(too_long, {"out": "*fp32", "TIMES": "constexpr"}, {"TIMES": 100_000})
    with pytest.raises(CompileTimeout, match="too_long"):
        compiler.submit(Compilation(source, H100, {})).result(timeout=100)
    compiler.close()
    daemon.close()


def test_without_a_daemon_kernels_are_compiled_here(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    compiler = Compiler(Pool(Options(tmp_path / "none.sock", autostart=False, with_torch=False)))
    with caplog.at_level(logging.WARNING, "compilepool"):
        kernel = compiler.submit(compilation(CASES[0], H100, 5)).result(timeout=100)
    assert unit_of(kernel) is None and kernel.asm["cubin"]
    compiler.close()


def test_a_forkserver_without_torch_is_ready_before_the_first_kernel(daemon: Daemon) -> None:
    command = [sys.executable, "-P", "-m", "compilepool", "forkserver", "--without-torch", "--detach"]
    subprocess.run([*command, "--socket", str(daemon.socket)], check=True, timeout=100)
    before = daemon.forkserver()
    compiler = Compiler(Pool(Options(daemon.socket, autostart=False, with_torch=False)))
    assert unit_of(compiler.submit(compilation(CASES[0], H100, 9)).result(timeout=100)) is not None
    compiler.close()
    assert daemon.forkserver() == before, "it is the one that was asked"
    mapped = {Path(region.path).name for region in before.memory_maps()}
    assert "libtriton.so" in mapped and not any(name.startswith("libtorch") for name in mapped)


def test_two_programs_have_one_compile(
    compiler: Compiler, compiles: Callable[[], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = matmul_configs(64)[-1]
    case = Case(matmul, [wanted], [], CASES[2].signature, ["c"], CASES[2].make)
    first = compiler.submit(compilation(case, H100)).result(timeout=100)
    assert compiles() == 1
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "another"))
    second = compiler.submit(compilation(case, H100)).result(timeout=100)
    assert compiles() == 0 and second.asm["cubin"] == first.asm["cubin"]


def test_a_claim_that_is_not_true_is_found_out(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for one key and sends another function gets nothing, and nothing is kept."""
    wanted, other = compilation(CASES[0], H100, 7), compilation(CASES[1], H100)
    wanted.__dict__["hash"] = other.hash
    kernel = compiler.submit(wanted).result(timeout=100)
    assert unit_of(kernel) is None
    assert unit_of(compiler.submit(other).result(timeout=100)) is not None
