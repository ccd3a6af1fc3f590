"""Tuning, with real compiles by a real daemon and a device that measures what a test tells it to."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.compiler.errors import CompilationError

import compilepool
import compilepool.triton
from compilepool.triton.compiler import Compiler
from tests.triton.conftest import Launch, Utilities, launches

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (64, 128) for warps in (1, 2, 4)]


@triton.jit
def scale(x, out, n, factor, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) * factor, at < n)


@triton.jit
def only_here(x, out, n, factor, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) - factor, at < n)


@triton.jit
def accumulate(x, total, n, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(total + at, tl.load(x + at, at < n), at < n)


@triton.jit
def accumulate_if_wanted(x, total, n, BLOCK: tl.constexpr):  # noqa: N803
    if total is not None:
        accumulate(x, total, n, BLOCK)


class Bench:
    """Runs what it is to measure once, and says that it took what is told of its last launch."""

    def __init__(self, milliseconds: Callable[[Launch], float]) -> None:
        self.measured: list[Launch] = []
        self._milliseconds = milliseconds

    def __call__(self, call: Callable[[], None], quantiles: Any = None) -> list[float]:
        call()
        self.measured.append(launches[-1])
        return [self._milliseconds(launches[-1])] * 3


def slowest_first(launch: Launch) -> float:
    """The more threads, the better."""
    return 10.0 / launch.num_warps + launch.grid[0] / 1000


def tuned(fn: Any, bench: Bench | None = None, **more: Any) -> Any:
    named = {"key": ["n"], "do_bench": bench or Bench(slowest_first), **more}
    configs = named.pop("configs", CONFIGS)
    return compilepool.autotune(configs, **named)(fn)


def grid(meta: dict[str, Any]) -> tuple[int, ...]:
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def tensors(n: int = 1000) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n), torch.zeros(n)


def test_the_best_config_is_chosen_once_for_each_key(default: Compiler, compiles: Callable[[], int]) -> None:
    bench = Bench(slowest_first)
    kernel = tuned(only_here, bench)
    x, out = tensors()
    first = kernel[grid](x, out, 1000, 2.0)
    assert len(bench.measured) == len(CONFIGS) and compiles() == len(CONFIGS)
    assert kernel.best_config.all_kwargs() == CONFIGS[5].all_kwargs()
    assert launches[-1].grid == (8, 1, 1) and launches[-1].arguments == (x, out, 1000, 2.0, 128)
    launches.clear()
    again = kernel[grid](x, out, 1000, 3.0)
    assert again is first and launches[-1].arguments == (x, out, 1000, 3.0, 128)
    kernel[(4,)](x, out, n=1000, factor=3.0)
    kernel[lambda meta: (meta["BLOCK"], 2)](x, out, 1000, factor=1.0)
    assert [launch.grid for launch in launches] == [(8, 1, 1), (4, 1, 1), (128, 2, 1)]
    assert len(bench.measured) == len(CONFIGS)
    kernel[grid](x, out, 999, 2.0)
    assert len(bench.measured) == 2 * len(CONFIGS) and len(kernel.cache) == 2


def test_a_launch_is_for_arguments_like_those_that_it_was_made_for(default: Compiler) -> None:
    kernel = tuned(scale, configs=CONFIGS[:1])
    x, out = tensors(1024)
    kernels = [
        kernel[grid](*arguments)
        for arguments in (
            (x, out, 1024, 2.0),
            (x[1:], out, 1024, 2.0),
            (x, out, 1, 2.0),
            (x, out, 1 << 40, 2.0),
            (x.half(), out, 1024, 2.0),
            (x, out, 1024, 3),
        )
    ]
    assert len({made.hash for made in kernels}) == 6
    assert kernel[grid](x, out, 2048, 5.0) is kernels[0]


def test_what_is_measured_runs_on_copies(default: Compiler) -> None:
    bench = Bench(slowest_first)
    kernel = tuned(scale, bench)
    x, out = tensors()
    kernel[grid](x, out, 1000, 2.0)
    assert all(launch.arguments[0] is x and launch.arguments[1] is not out for launch in bench.measured)
    assert launches[-1].arguments[1] is out
    shifted = torch.zeros(1001)[1:]
    kernel[grid](x, shifted, 1000, 2.0)
    copies = [launch.arguments[1] for launch in bench.measured[len(CONFIGS) :]]
    assert copies == [] or all(copy.data_ptr() % 16 == shifted.data_ptr() % 16 for copy in copies)


def test_hooks_are_called_as_tritons_own_call_them(default: Compiler) -> None:
    x, total = tensors()
    total += 5.0
    kernel = tuned(accumulate, reset_to_zero=["total"])
    kernel[grid](x, total, 1000)
    assert total.eq(0).all(), "the call that tunes begins with zeros, as with Triton"
    restored = tuned(accumulate, restore_value=["total"])
    total += 5.0
    restored[grid](x, total, 1000)
    assert total.eq(5).all()
    optional = tuned(accumulate_if_wanted, reset_to_zero=["total"], restore_value=["total"])
    optional[grid](x, None, 1000)
    seen: list[Any] = []
    configs = [triton.Config({"BLOCK": 64}, pre_hook=lambda values: seen.append(values["BLOCK"]))]
    hooked = tuned(scale, configs=configs)
    for _ in range(2):
        hooked[grid](x, total, 1000, 1.0)
    assert seen == [64, 64]


def test_configs_are_pruned_as_with_triton(default: Compiler) -> None:
    def keep_wide(configs: list[Any], named: dict[str, Any], **_: Any) -> list[Any]:
        return [config for config in configs if config.kwargs["BLOCK"] <= named["n"] // 10]

    bench = Bench(slowest_first)
    pruned = {"early_config_prune": keep_wide, "perf_model": lambda num_warps, **_: num_warps, "top_k": 2}
    kernel = tuned(scale, bench, prune_configs_by=pruned)
    x, out = tensors(1100)
    kernel[grid](x, out, 1100, 2.0)
    assert sorted(launch.num_warps for launch in bench.measured) == [1, 2]


def test_a_config_that_does_not_fit_is_left_out(default: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.handwritten import matmul, matmul_configs

    monkeypatch.setattr(Utilities, "most_shared", 50_000)
    bench = Bench(lambda launch: float(launch.num_warps))
    kernel = compilepool.autotune(matmul_configs(8), key=["M"], do_bench=bench)(matmul)
    a, b, c = (torch.zeros(128, 128, dtype=torch.float16) for _ in range(3))
    kernel[(1,)](a, b, c, 128, 128, 128, 128, 1, 128, 1, 128, 1)
    assert 0 < len(bench.measured) < 8
    monkeypatch.setattr(Utilities, "most_shared", 1)
    with pytest.raises(triton.runtime.errors.AutotunerError, match="none of the 8 configs of matmul can be launched"):
        compilepool.autotune(matmul_configs(8), key=["N"], do_bench=bench)(matmul)[(1,)](
            a, b, c, 128, 128, 120, 128, 1, 128, 1, 128, 1
        )


def test_an_error_of_the_kernel_is_raised_and_one_of_its_call_too(default: Compiler) -> None:
    from tests.triton.test_compiling import wrong

    configs = [triton.Config({"BLOCK": block}) for block in (64, 128)]
    kernel = compilepool.autotune(configs, key=[], do_bench=Bench(slowest_first))(wrong)
    with pytest.raises(CompilationError, match="not_defined is not defined"):
        kernel[(1,)](torch.zeros(64))
    with pytest.raises(ValueError, match="Conflicting meta-parameters: BLOCK"):
        tuned(scale)[grid](*tensors(), 1000, 2.0, BLOCK=64)
    with pytest.raises(TypeError, match="factor"):
        tuned(scale)[grid](*tensors(), 1000)
    with pytest.raises(ValueError, match="first is 'best' or 'ready'"):
        tuned(scale, first="fastest")


def test_heuristics_go_on_working(default: Compiler) -> None:
    @triton.heuristics({"BLOCK": lambda values: 64 if values["n"] < 500 else 256})
    @triton.jit
    def chosen(x, out, n, BLOCK: tl.constexpr):  # noqa: N803
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, at < n), at < n)

    kernel = compilepool.autotune(
        [triton.Config({}, num_warps=w) for w in (1, 2)], key=["n"], do_bench=Bench(slowest_first)
    )(chosen)
    x, out = tensors()
    kernel[(4,)](x, out, 1000)
    assert launches[-1].arguments[-1] == 256 and launches[-1].num_warps == 2
    futures = kernel.precompile(torch.float32, torch.float32, 100, targets=["cuda:80"])
    assert {made.src.constants[(3,)] for made in futures.result(timeout=100)} == {64}


# ---- times


def test_times_serve_the_next_process_and_are_kept_config_by_config(
    default: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, out = tensors(1234)
    tuned(scale, configs=CONFIGS[:4])[grid](x, out, 1234, 2.0)
    (file,) = (tmp_path / "tuning").glob("scale-*.json")
    kept = json.loads(file.read_text())
    assert kept["subject"]["kernel"] == "scale" and len(kept["milliseconds"]) == 4
    assert next(iter(kept["milliseconds"])) == "BLOCK=64, num_ctas=1, num_stages=3, num_warps=4"
    bench = Bench(slowest_first)
    another = tuned(scale, bench, configs=CONFIGS)
    another[grid](x, out, 1234, 2.0)
    # What is new, beside what was best.
    assert sorted((m.num_warps, m.arguments[-1]) for m in bench.measured) == [(2, 128), (4, 64), (4, 128)]
    fewer = Bench(slowest_first)
    tuned(scale, fewer, configs=CONFIGS[2:5])[grid](x, out, 1234, 2.0)
    assert fewer.measured == []
    monkeypatch.setenv("COMPILEPOOL_TUNING_DIR", str(tmp_path / "of-another-host"))
    elsewhere = Bench(slowest_first)
    tuned(scale, elsewhere)[grid](x, out, 1234, 2.0)
    assert elsewhere.measured == [], "the daemon has them"


def test_recheck_takes_what_others_have_found(default: Compiler) -> None:
    x, out = tensors(3000)
    mine = tuned(scale, configs=CONFIGS[:2])
    mine[grid](x, out, 3000, 2.0)
    theirs = tuned(scale, Bench(lambda launch: 1e-3 / launch.num_warps), configs=CONFIGS[:3])
    theirs[grid](x, out, 3000, 2.0)
    assert theirs.best_config is not CONFIGS[1] and mine.best_config == CONFIGS[1]
    mine.configs = CONFIGS[:3]
    mine.recheck()
    mine[grid](x, out, 3000, 2.0)
    assert mine.best_config.all_kwargs() == theirs.best_config.all_kwargs()


def test_a_damaged_file_of_times_is_measured_anew(default: Compiler, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("compilepool.triton.choosing.timing_store", lambda: TimingStore(tmp_path / "tuning"))
    from compilepool.triton.timings import TimingStore

    x, out = tensors(2000)
    tuned(scale)[grid](x, out, 2000, 2.0)
    (file,) = (tmp_path / "tuning").glob("scale-*.json")
    file.write_text(file.read_text()[:-20])
    bench = Bench(slowest_first)
    tuned(scale, bench)[grid](x, out, 2000, 2.0)
    assert len(bench.measured) == len(CONFIGS)


# ---- before and beside the first call


def test_configs_are_compiled_before_the_first_call(default: Compiler, compiles: Callable[[], int]) -> None:
    configs = [triton.Config({"BLOCK": block}) for block in (16, 32)]
    kernel = tuned(only_here, configs=configs)
    made = kernel.precompile(torch.float32, torch.float32, 1000, 2.0).result(timeout=100)
    assert len(made) == 2 and compiles() == 2
    x, out = tensors(1008)
    assert kernel[grid](x, out, 1001, 2.0) in made
    assert compiles() == 0
    others = kernel.precompile(torch.float32, torch.float32, 1000, 2.0, targets=["cuda:80", "hip:gfx942"])
    assert [one.metadata.target.arch for one in others.result(timeout=100)] == [80, 80, "gfx942", "gfx942"]
    assert compiles() == 4
    with pytest.raises(ValueError, match="'sm_90' is no target"):
        kernel.precompile(torch.float32, torch.float32, 1000, 2.0, targets=["sm_90"])


def test_the_first_call_may_take_what_is_ready(default: Compiler) -> None:
    bench = Bench(slowest_first)
    kernel = tuned(scale, bench, configs=[triton.Config({"BLOCK": b}) for b in (256, 512, 1024)], first="ready")
    x, out = tensors()
    kernel[grid](x, out, 1000, 2.0)
    assert launches and bench.measured == []
    for warmups in list(kernel.pending.values()):
        for future in warmups.futures:
            future.result(timeout=100)
    kernel[grid](x, out, 1000, 2.0)
    assert len(bench.measured) == 3 and kernel.best_config.kwargs == {"BLOCK": 1024}


def test_without_a_daemon_it_tunes_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    from compilepool.client import Pool
    from compilepool.options import Options

    alone = Compiler(Pool(Options(tmp_path / "none.sock", autostart=False, with_torch=False)))
    monkeypatch.setattr("compilepool.triton.autotuner.default_compiler", lambda: alone)
    monkeypatch.setattr("compilepool.triton.choosing.default_compiler", lambda: alone)
    bench = Bench(slowest_first)
    with caplog.at_level(logging.WARNING, "compilepool"):
        tuned(scale, bench)[grid](*tensors(), 1000, 2.0)
    assert len(bench.measured) == len(CONFIGS)
    alone.close()


def test_somebody_who_listens_to_launches_hears_them(default: Compiler) -> None:
    kernel = tuned(scale, configs=CONFIGS[:1])
    x, out = tensors()
    kernel[grid](x, out, 1000, 2.0)
    heard: list[Any] = []
    scale.add_pre_run_hook(lambda *args, **kwargs: heard.append(kwargs["BLOCK"]))
    try:
        kernel[grid](x, out, 1000, 2.0)
    finally:
        scale.pre_run_hooks.clear()
    kernel[grid](x, out, 1000, 2.0)
    assert heard == [64]


def test_bytes_that_kernels_move_are_told(default: Compiler) -> None:
    kernel = tuned(scale, Bench(lambda _: 2.0), configs=CONFIGS[:2])
    x, out = tensors(2100)
    kernel[grid](x, out, 2100, 2.0)
    with compilepool.triton.bandwidth() as report:
        for _ in range(3):
            kernel[grid](x, out, 2100, 2.0)
    kernel[grid](x, out, 2100, 2.0)
    (moved,) = report.moved
    assert (moved.kernel, moved.launches, moved.bytes, moved.milliseconds) == ("scale", 3, 2 * 4 * 2100, 2.0)
    assert moved.gigabytes_per_second == pytest.approx(2 * 4 * 2100 / 2e-3 / 1e9)
    assert json.loads(report.json())[0]["config"] == moved.config
    header, line = str(report).splitlines()
    assert header.split() == ["ms", "launches", "GB", "GB/s", "registers", "spills", "kernel"]
    assert line.split()[:3] == ["2.0000", "3", "0.0000"] and "scale (BLOCK=64" in line
