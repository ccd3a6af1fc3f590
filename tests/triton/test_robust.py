"""What programs do to kernels and autotuners: odd names, hooks, forks, threads, globals that change."""

import math
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs
from triton.runtime.autotuner import Autotuner as Tritons
from triton.tools.tensor_descriptor import TensorDescriptor

import compilepool
from compilepool.protocol.errors import CompileTimeout
from compilepool.triton.compilation import Compilation
from compilepool.triton.compiler import Compiler
from compilepool.triton.guard import Guard
from compilepool.triton.timings import TimingStore
from tests.triton.conftest import launches, unit_of
from tests.triton.test_autotuner import CONFIGS, Bench, accumulate, grid, scale, slowest_first, tensors, tuned

x = torch.zeros(4)
values = torch.zeros(3_000_000)
G = tl.constexpr(5)
TWO = [triton.Config({"BLOCK": block}) for block in (32, 64)]


@triton.jit
def shadows(x, out, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.arange(0, BLOCK)
    values = tl.load(x + at)
    tl.store(out + at, values)


@triton.jit
def named_oddly(grid, self, _cp_launch, key, launch, n, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.arange(0, BLOCK)
    tl.store(grid + at, tl.load(self + at) + _cp_launch + key + launch, at < n)


@triton.jit
def uses_a_global(out, BLOCK: tl.constexpr):  # noqa: N803
    tl.store(out + tl.arange(0, BLOCK), G)


@triton.jit
def by_descriptors(a, c, BLOCK: tl.constexpr):  # noqa: N803
    c.store([0, 0], a.load([0, 0]) + tl.zeros((BLOCK, 64), tl.float32))


def test_what_only_shares_a_name_with_a_global_stays_at_home(compiler: Compiler) -> None:
    source = triton.compiler.ASTSource(shadows, {"x": "*fp32", "out": "*fp32", "BLOCK": "constexpr"}, {"BLOCK": 64})
    target = triton.runtime.driver.active.get_current_target()
    wanted = Compilation(source, target, {})
    assert len(wanted.request()[1]) < 10_000 and not wanted.request()[0].ttir
    assert unit_of(compiler.submit(wanted).result(timeout=100)) is not None


def test_parameters_may_have_any_name(default: Compiler) -> None:
    kernel = tuned(named_oddly, configs=TWO, key=["n"])
    a, b = tensors(64)
    for _ in range(2):
        kernel[(1,)](a, b, 2, 3, 4, 64)
        assert launches[-1].arguments[:6] == (a, b, 2, 3, 4, 64)
    assert kernel[(1,)](a, b, _cp_launch=2, key=3, launch=4, n=64) is not None


def test_a_hook_may_decide_what_is_compiled(default: Compiler) -> None:
    def set_blocks(named: dict[str, Any]) -> None:
        named["a"].block_shape = named["c"].block_shape = [named["BLOCK"], 64]

    configs = [triton.Config({"BLOCK": block}, pre_hook=set_blocks) for block in (64, 128)]
    kernel = tuned(by_descriptors, Bench(lambda launch: 1.0), configs=configs, key=[])
    a, c = (TensorDescriptor.from_tensor(torch.zeros(256, 64), [2, 64]) for _ in range(2))
    assert unit_of(kernel[(1,)](a, c)) is not None
    assert a.block_shape == [64, 64]


def test_a_cancelled_precompile_leaves_no_trace(default: Compiler) -> None:
    kernel = tuned(accumulate, configs=TWO)
    future = kernel.precompile(torch.float32, torch.float32, 2200)
    future.cancel()
    kernel[grid](*tensors(2200), 2200)
    assert launches[-1].kernel == "accumulate"


def test_a_fork_does_not_wait_for_what_its_parent_has_asked(default: Compiler, tmp_path: Any) -> None:
    kernel = tuned(shadows, configs=[triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 256})], key=[])
    future = kernel.precompile(torch.float32, torch.float32)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            kernel[(1,)](torch.zeros(256), torch.zeros(256))
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert len(future.result(timeout=100)) == 2


def test_a_global_that_changes_is_noticed(default: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = tuned(uses_a_global, configs=TWO, key=[])
    out = torch.zeros(64)
    for _ in range(2):
        kernel[(1,)](out)
    monkeypatch.setitem(uses_a_global.__globals__, "G", tl.constexpr(6))
    with pytest.raises(RuntimeError, match="Global variable G has changed"):
        kernel[(1,)](out)


def test_what_was_computed_before_tuning_was_over_is_kept(default: Compiler) -> None:
    blocks = [triton.Config({"BLOCK": block}) for block in (512, 1024)]
    kernel = tuned(accumulate, Bench(slowest_first), configs=blocks, reset_to_zero=["total"], first="ready")
    data, total = tensors(2300)
    total += 7.0
    kernel[grid](data, total, 2300)
    assert total.eq(0).all(), "as Triton's own first call"
    total += 1.0
    for pending in list(kernel.pending.values()):
        for future in pending.futures:
            future.result(timeout=100)
    kernel[grid](data, total, 2300)
    kernel.recheck()
    kernel[grid](data, total, 2300)
    assert total.eq(1).all(), "and no later one"


def test_a_failure_of_the_pool_is_not_kept_as_one_of_the_config(
    default: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    from compilepool.triton import warmups

    real, failures = warmups._result, iter([True, True])

    def fails_twice(kernel: Any) -> Any:
        if next(failures, False):
            raise CompileTimeout("it took too long", "scale")
        return real(kernel)

    monkeypatch.setattr(warmups, "_result", fails_twice)
    data, out = tensors(2400)
    with pytest.raises(triton.runtime.errors.AutotunerError):
        tuned(scale, configs=TWO)[grid](data, out, 2400, 2.0)
    assert tuned(scale, configs=TWO)[grid](data, out, 2400, 2.0) is not None


def test_the_last_choice_is_told(default: Compiler) -> None:
    kernel = tuned(scale, Bench(lambda launch: abs(launch.arguments[2] / launch.grid[0] - 64)), configs=CONFIGS[::3])
    chosen = []
    for n in (64, 128, 64, 128):
        kernel[grid](*tensors(n), n, 2.0)
        chosen.append(kernel.best_config.kwargs["BLOCK"])
    assert chosen[:2] == chosen[2:] and chosen[0] == launches[-2].arguments[-1]


def test_warmup_prunes_as_triton_does(default: Compiler) -> None:
    def wide(configs: list[Any], _named: dict[str, Any], **more: Any) -> list[Any]:
        assert {"grid", "warmup"} <= more.keys()
        return [config for config in configs if config.kwargs["BLOCK"] > 3]

    configs = [triton.Config({"BLOCK": 3}), *TWO]
    kernel = tuned(shadows, configs=configs, key=[], prune_configs_by={"early_config_prune": wide})
    assert len(kernel.warmup(torch.float32, torch.float32, grid=(1,))) == 2


def test_the_interpreter_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knobs.runtime, "interpret", True)
    kernel = tuned(scale, configs=TWO)
    assert type(kernel) is Tritons


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_function_in_the_place_of_hooks_is_called(
    default: Compiler, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Triton's own launch passes it on; the pretended one keeps what it was given."""
    kernel = tuned(scale, configs=CONFIGS[:1])
    data, out = tensors(2500)
    ways: list[str] = []
    run = type(scale).run

    def noted(*args: Any, **kwargs: Any) -> Any:
        ways.append("long")
        return run(*args, **kwargs)

    monkeypatch.setattr(type(scale), "run", noted)
    if when == "after":
        kernel[grid](data, out, 2500, 2.0)
    monkeypatch.setattr(knobs.runtime, "launch_enter_hook", lambda *_: None)
    before = len(ways)
    for _ in range(2):
        kernel[grid](data, out, 2500, 2.0)
    assert len(ways) == before + 2


def test_a_class_made_of_it_may_launch_in_its_own_way(default: Compiler) -> None:
    class Counting(type(tuned(accumulate, configs=TWO))):  # type: ignore[misc]
        runs = 0

        def run(self, *args: Any, **kwargs: Any) -> Any:
            self.runs += 1
            return super().run(*args, **kwargs)

    kernel = Counting(accumulate, accumulate.arg_names, TWO, ["n"], None, None, do_bench=Bench(lambda launch: 1.0))
    for _ in range(2):
        kernel[grid](*tensors(2300), 2300)
    assert kernel.runs == 2
    assert launches[-1].kernel == "accumulate"


def test_what_configs_set_can_not_be_given(default: Compiler) -> None:
    for named in ({"BLOCK": 64}, {"num_warps": 2}):
        with pytest.raises(ValueError, match="Conflicting meta-parameters"):
            tuned(scale)[grid](*tensors(), 1000, 2.0, **named)


def test_a_parameter_that_is_trained_is_put_back() -> None:
    weight = torch.nn.Parameter(torch.ones(8))
    kernel: Any = type("Kernel", (), {"asm": {}, "src": type("Source", (), {"signature": {}})})
    guard = Guard({"weight": weight}, "k", room=lambda _: 0)
    called = guard.for_kernel(kernel)["weight"]
    called.data.zero_()
    guard.release()
    assert called is weight and weight.eq(1).all()
    copied = Guard({"weight": weight}, "k", room=lambda _: 1 << 40).for_kernel(kernel)["weight"]
    assert copied is not weight and not copied.requires_grad


def test_many_threads_call_it_at_once(default: Compiler) -> None:
    kernel = tuned(scale, Bench(lambda launch: launch.grid[0]), configs=CONFIGS[::3])
    sizes = [256 * (1 + number % 4) for number in range(16)]
    errors: list[BaseException] = []

    def call(n: int) -> None:
        try:
            for _ in range(3):
                kernel[grid](*tensors(n), n, 2.0)
        except BaseException as exc:  # noqa: BLE001 - for the test to tell
            errors.append(exc)

    threads = [threading.Thread(target=call, args=(n,)) for n in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for launch in launches:
        n, block = launch.arguments[2], launch.arguments[-1]
        assert launch.grid == (triton.cdiv(n, block), 1, 1)


def test_times_are_printed_if_triton_is_told_to(
    default: Compiler, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(knobs.autotuning, "print", True)
    tuned(scale, configs=TWO)[grid](*tensors(2600), 2600, 2.0)
    assert "Triton autotuning for function scale" in capsys.readouterr().out


def test_a_target_that_is_none_is_told(default: Compiler) -> None:
    kernel = tuned(scale, configs=TWO)
    for target in ("hip:foo", "cuda:", "tpu:1", "cuda:sm_90", "hip:gfx942:x"):
        with pytest.raises(ValueError, match="is no target"):
            kernel.precompile(torch.float32, torch.float32, 5, 1.0, targets=[target])
    with pytest.raises(triton.runtime.errors.PTXASError):
        kernel.precompile(torch.float32, torch.float32, 5, 1.0, targets=["cuda:999"]).result(timeout=100)


def test_a_lock_ends_with_its_process(tmp_path: Any, default: Compiler) -> None:
    from tests.triton.test_tuning_cli import SUBJECT

    store = TimingStore(tmp_path / "here")
    with store.measuring(SUBJECT):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
        os.close(reader)
    taken: Callable[[], Any] = store.measuring(SUBJECT).__enter__
    taken()
    os.close(writer)
    os.waitpid(child, 0)


def test_configs_that_spill_are_left_out_if_that_is_wanted(default: Compiler) -> None:
    from tests.handwritten import softmax

    configs = [triton.Config({}, num_warps=warps) for warps in (1, 16)]
    data = torch.zeros(4, 16384)
    for columns, most, measured in ((16000, math.inf, [1, 16]), (16001, 16, [16])):
        bench = Bench(lambda launch: float(launch.num_warps))
        kernel = compilepool.autotune(configs, key=["columns"], do_bench=bench, most_spills=most)(softmax)
        kernel[(4,)](data, torch.empty_like(data), 16384, columns, 16384)
        assert sorted(launch.num_warps for launch in bench.measured) == measured
