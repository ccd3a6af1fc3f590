"""Coordinate descent: it finds the bottom of a slope, measures nothing twice, and says beforehand what it may ask."""

import math
from collections.abc import Callable
from typing import Any

import triton
from hypothesis import given, strategies as st

from compilepool.triton.compiler import Compiler
from compilepool.triton.descending import config_named
from compilepool.triton.descent import Descent, Point, neighbours, point
from compilepool.triton.measuring import name_of
from tests.triton.conftest import Launch, launches
from tests.triton.test_autotuner import Bench, grid, scale, tensors, tuned

_STARTS = st.builds(
    lambda block, other, warps, stages: point(
        {"BLOCK_M": 1 << block, "OTHER": 1 << other, "num_warps": 1 << warps, "num_stages": stages}
    ),
    st.integers(0, 10),
    st.integers(0, 6),
    st.integers(0, 4),
    st.integers(1, 6),
)


def bowl(bottom: Point) -> Callable[[Point], float]:
    """Times that grow with the distance from one config."""
    at = dict(bottom)
    return lambda one: 1.0 + sum(abs(math.log2(value / at[name])) for name, value in one)


@given(_STARTS, _STARTS, st.data())
def test_it_comes_to_the_bottom_and_measures_nothing_twice(start: Point, bottom: Point, data: st.DataObject) -> None:
    time = bowl(bottom)
    descent = Descent(start, {start: time(start)})
    measured: list[Point] = []
    foreseen: set[Point] = set(neighbours(start))
    while wanted := descent.wanted():
        assert foreseen.issuperset(wanted), "it was not said to come"
        candidate = data.draw(st.sampled_from(wanted))
        measured.append(candidate)
        foreseen = {*wanted, *descent.soon(10_000)}
        descent.told(candidate, time(candidate))
    assert len(set(measured)) == len(measured)
    assert all(time(descent.best) <= time(one) for one in neighbours(descent.best))


@given(_STARTS, st.data())
def test_what_can_not_be_launched_is_walked_around(start: Point, data: st.DataObject) -> None:
    descent = Descent(start, {start: 5.0})
    while wanted := descent.wanted():
        candidate = data.draw(st.sampled_from(wanted))
        taken = data.draw(st.one_of(st.none(), st.floats(0.1, 10)))
        descent.told(candidate, taken)
        if len(descent.times) > 200:
            break
    assert descent.times[descent.best] is not None


def slope(launch: Launch) -> float:
    """Best with blocks of 512 elements and 2 warps."""
    return 1 + abs(math.log2(launch.arguments[-1] / 512)) + abs(math.log2(launch.num_warps / 2))


def test_a_kernel_is_tuned_beside_what_it_was_given(default: Compiler, compiles: Callable[[], int]) -> None:
    configs = [triton.Config({"BLOCK": block}, num_warps=4, num_stages=1) for block in (64, 128)]
    bench = Bench(slope)
    kernel = tuned(scale, bench, configs=configs, descend=True)
    x, out = tensors(1800)
    kernel[grid](x, out, 1800, 2.0)
    assert kernel.best_config.kwargs == {"BLOCK": 512} and kernel.best_config.num_warps == 2
    assert launches[-1].arguments == (x, out, 1800, 2.0, 512)
    assert kernel.report.steps >= 3 and kernel.report.measured == len(bench.measured) - 2
    launches.clear()
    kernel[grid](x, out, 1800, 2.0)
    assert launches[-1].arguments[-1] == 512
    again = Bench(slope)
    another = tuned(scale, again, configs=configs, descend=True)
    another[grid](x, out, 1800, 2.0)
    assert again.measured == [] and another.best_config.all_kwargs() == kernel.best_config.all_kwargs()


def test_what_the_program_prunes_is_not_tried(default: Compiler) -> None:
    def short(configs: list[Any], _named: dict[str, Any], **_: Any) -> list[Any]:
        return [config for config in configs if config.kwargs["BLOCK"] <= 128]

    configs = [triton.Config({"BLOCK": 64}, num_warps=4, num_stages=1), triton.Config({"BLOCK": 32}, num_stages=1)]
    kernel = tuned(scale, Bench(slope), configs=configs, descend=True, prune_configs_by={"early_config_prune": short})
    x, out = tensors(1900)
    kernel[grid](x, out, 1900, 2.0)
    assert kernel.best_config.kwargs == {"BLOCK": 128} and kernel.best_config.num_warps == 2


def test_a_config_is_found_by_its_name() -> None:
    like = triton.Config({"BLOCK": 64, "EVEN": True, "MODE": "a"}, num_warps=4, num_stages=2, maxnreg=128)
    other = triton.Config({"BLOCK": 256, "EVEN": True, "MODE": "a"}, num_warps=8, num_stages=3, maxnreg=128)
    assert config_named(name_of(other), like) == other
    for strange in (
        triton.Config({"BLOCK": 256, "EVEN": False, "MODE": "a"}, num_warps=8, maxnreg=128),
        triton.Config({"BLOCK": 256}),
        triton.Config({"BLOCK": 256, "EVEN": True, "MODE": "a"}, maxnreg=64),
    ):
        assert config_named(name_of(strange), like) is None
    assert config_named("no config at all", like) is None
