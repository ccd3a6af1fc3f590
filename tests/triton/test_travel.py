"""An autotuner travels: to other processes, other versions, without any function, and launches where it arrives."""

import pickle
import pickletools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import HealthCheck, given, settings, strategies as st

import compilepool
from compilepool.triton import travel
from compilepool.triton.autotuner import Autotuner
from compilepool.triton.compiler import Compiler
from tests.triton.conftest import launches
from tests.triton.test_autotuner import CONFIGS, Bench, grid, scale, slowest_first, tensors, tuned

importable = tuned(scale)
hooked_with: list[int] = []
HOOKED = [triton.Config({"BLOCK": b}, pre_hook=lambda told: hooked_with.append(told["BLOCK"])) for b in (64, 128)]


@compilepool.autotune(HOOKED, key=["n"], do_bench=Bench(slowest_first))
@triton.jit
def hooked(x, n, BLOCK: tl.constexpr):  # noqa: N803
    tl.store(x + tl.arange(0, BLOCK), n)


def chosen_there(raw: bytes, statement: str) -> str:
    """What another process prints, given an autotuner as `kernel`."""
    code = f"import pickle, sys\nkernel = pickle.load(sys.stdin.buffer)\n{statement}"
    root = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", code], input=raw, capture_output=True, check=False, cwd=root)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def test_what_has_arrived_launches_without_its_function(default: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    x, out = tensors(1300)
    kernel = tuned(scale, pre_hook=lambda values, reset_only=False: None)
    kernel[grid](x, out, 1300, 2.0)
    raw = pickle.dumps(kernel)
    functions = [f"{a} {b}" for op, a, b in _globals_of(raw) for op in [op]]
    assert all(not name.startswith("triton.runtime.jit") for name in functions), functions
    assert b"tl.load" not in raw, "no text of a function either"
    arrived: Any = pickle.loads(raw)
    monkeypatch.setattr(travel.Reference, "load", _must_not_be_called)
    launches.clear()
    arrived[grid](x, out, 1300, 3.0)
    arrived[grid](x, out, 1300, 4.0)
    assert [launch.arguments for launch in launches] == [(x, out, 1300, value, 128) for value in (3.0, 4.0)]
    assert arrived.best_config is None or arrived.best_config == kernel.best_config
    again: Any = pickle.loads(pickle.dumps(arrived))
    again[grid](x, out, 1300, 5.0)
    assert launches[-1].arguments[3] == 5.0 and launches[-1].num_warps == 4


def _must_not_be_called(_reference: travel.Reference) -> Any:
    raise AssertionError("the function was imported")


def _globals_of(raw: bytes) -> list[tuple[str, str, str]]:
    found = []
    strings: list[str] = []
    for op, argument, _ in pickletools.genops(raw):
        if isinstance(argument, str):
            strings.append(argument)
        if op.name in ("GLOBAL", "STACK_GLOBAL"):
            found.append((op.name, strings[-2], strings[-1]))
    return found


def test_the_function_is_imported_when_it_is_needed(default: Compiler) -> None:
    x, out = tensors(1400)
    importable[grid](x, out, 1400, 2.0)
    arrived = pickle.loads(pickle.dumps(importable))
    assert isinstance(arrived._fn, travel.Reference)
    arrived._do_bench = Bench(slowest_first)
    arrived[grid](x.half(), out, 1400, 2.0)
    assert arrived.fn is scale and arrived.best_config.all_kwargs() == CONFIGS[5].all_kwargs()


def test_a_function_that_has_changed_is_not_taken_for_the_old_one(default: Compiler) -> None:
    state = importable.__getstate__()
    reference = state["function"]
    for wrong, told in (
        (travel.Reference(reference.module, reference.qualname, "0" * 64, None), "is not the function that this"),
        (travel.Reference(reference.module, "gone", reference.content, None), "is not there to be imported"),
    ):
        arrived = Autotuner.__new__(Autotuner)
        arrived.__setstate__({**state, "function": wrong})
        with pytest.raises(travel.FunctionChanged, match=told):
            arrived.precompile(torch.float32, torch.float32, 5, 1.0, targets=["cuda:90"])


def test_kernels_of_another_triton_are_left_aside_and_choices_stay(default: Compiler) -> None:
    x, out = tensors(1500)
    importable[grid](x, out, 1500, 2.0)
    state = importable.__getstate__()
    from dataclasses import replace

    state["kernels"] = [(key, config, replace(result, triton="3.99.0")) for key, config, result in state["kernels"]]
    arrived = Autotuner.__new__(Autotuner)
    arrived.__setstate__(state)
    launches.clear()
    arrived[grid](x, out, 1500, 2.0)
    assert launches[-1].num_warps == 4 and not isinstance(arrived._fn, travel.Reference)
    with pytest.raises(ValueError, match="of format 99; this version reads 1"):
        arrived.__setstate__({**state, "format": 99})


def test_hooks_of_configs_come_with_the_function(default: Compiler) -> None:
    data = torch.zeros(128)
    hooked[(2,)](data, 5)
    arrived: Any = pickle.loads(pickle.dumps(hooked))
    assert all(config.pre_hook is None for config in arrived.configs)
    hooked_with.clear()
    arrived[(2,)](data, 5)
    assert hooked_with == [hooked.best_config.kwargs["BLOCK"]]


def test_it_is_stripped_and_put_back_in_place(default: Compiler) -> None:
    kernel = tuned(scale)
    x, out = tensors(1600)
    kernel[grid](x, out, 1600, 2.0)
    old = kernel.prepare_for_pickle()
    assert isinstance(kernel._fn, travel.Reference) and not any(callable(v) for v in (kernel._do_bench,))
    arrived = pickle.loads(pickle.dumps(kernel))
    kernel.restore_after_unpickle(old)
    assert kernel.fn is scale and kernel.do_bench is not None
    arrived.restore_after_unpickle(None)
    kernel[grid](x, out, 1600, 2.0)
    arrived[grid](x, out, 1600, 2.0)
    assert launches[-1] == launches[-2]


_NUMBERS = st.integers(1, 1 << 20)
_CONFIGS = st.lists(
    st.builds(
        triton.Config,
        st.dictionaries(st.sampled_from(["BLOCK", "OTHER", "THIRD"]), st.one_of(_NUMBERS, st.booleans(), st.text())),
        num_warps=st.sampled_from([1, 2, 4, 8]),
        num_stages=st.integers(1, 5),
        maxnreg=st.one_of(st.none(), _NUMBERS),
    ),
    min_size=1,
    max_size=6,
)
_KEYS = st.lists(st.one_of(_NUMBERS, st.text(), st.floats(allow_nan=False), st.none()), max_size=4).map(tuple)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(configs=_CONFIGS, key=_KEYS, times=st.lists(st.floats(0.001, 1e6), min_size=6, max_size=6))
def test_nothing_plain_is_lost_on_the_way(
    configs: list[triton.Config], key: tuple[Any, ...], times: list[float]
) -> None:
    kernel = compilepool.autotune(configs, key=["n"], reset_to_zero=["out"], first="ready")(scale)
    kernel.cache[key] = configs[-1]
    kernel.configs_timings = dict(zip(configs, times, strict=False))
    arrived = pickle.loads(pickle.dumps(kernel))
    for _ in range(2):
        assert [vars(config) for config in arrived.configs] == [vars(config) for config in configs]
        assert arrived.cache == {key: configs[-1]} and arrived.configs_timings == kernel.configs_timings
        assert (arrived.keys, arrived.reset_to_zero, arrived.first) == (["n"], ["out"], "ready")
        assert arrived.__getstate__() == kernel.__getstate__()
        arrived = pickle.loads(pickle.dumps(arrived))


def test_it_travels_between_processes(default: Compiler) -> None:
    x, out = tensors(1700)
    importable[grid](x, out, 1700, 2.0)
    told = chosen_there(
        pickle.dumps(importable),
        "print(kernel.__name__, len(kernel.cache), kernel._travelled and 'compiled', kernel.fn.__name__)",
    )
    assert told.startswith("scale ") and told.endswith("compiled scale")
