"""Generated configs are those that torch's own generators make, and grids those of its launchers."""

import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch._inductor.runtime import hints as inductor_hints, triton_heuristics as inductor
from torch._inductor.runtime.hints import AutotuneHint, DeviceProperties, ReductionHint, TileHint
from triton.runtime.autotuner import Config

from compilepool.triton import configs, grids
from compilepool.triton.configs import Hints
from compilepool.triton.shapes import Device, NoConfig

pytestmark = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13), reason="the rules are those of torch 2.13"
)

H100 = Device()
A100 = Device(major=8, multiprocessors=108)
B200 = Device(major=10, multiprocessors=148)
MI300 = Device("hip", 9, 304, 65536 * 2, 2048, 64)
DEVICES = [A100, H100, B200, MI300]
LENGTHS = [1, 2, 8, 64, 128, 256, 512, 1024, 2048, 4096, 1 << 15, 1 << 20, 1 << 27]
REDUCES = {
    "inner": ReductionHint.INNER,
    "outer": ReductionHint.OUTER,
    "outer-tiny": ReductionHint.OUTER_TINY,
    "unknown": ReductionHint.DEFAULT,
}


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[Device], dict[str, Any]]:
    """torch's own generators take it that they are on this device; what it tells them of one."""

    def pretend(device: Device) -> dict[str, Any]:
        monkeypatch.setattr(torch.version, "hip", "6.4" if device.is_hip else None)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        most = {**inductor_hints.TRITON_MAX_BLOCK, "X": device.largest("x")}
        monkeypatch.setattr(inductor, "TRITON_MAX_BLOCK", most)
        monkeypatch.setattr(inductor, "check_max_block", lambda _: None)
        told = DeviceProperties(
            device.backend,
            0,
            device.multiprocessors,
            10 * device.major,
            device.major,
            device.registers,
            device.threads,
            1024,
            device.warp_size,
        )
        return {"device": told, "signature": {}}

    return pretend


def described(made: list[Any]) -> list[tuple[Any, ...]]:
    return [(dict(config.kwargs), config.num_warps, config.num_stages) for config in made]


def meta_of(hints: Hints, sizes: dict[str, int]) -> dict[str, Any]:
    """Hints in Inductor's words."""
    return {
        "num_load": hints.loads,
        "num_reduction": hints.reductions,
        "max_autotune": hints.thorough,
        "autotune_pointwise": hints.tuned,
        "add_persistent_rblock": hints.persistent_block,
        "atomic_add_found": hints.atomics,
        "reduction_hint": REDUCES[hints.reduces],
        "autotune_hints": [AutotuneHint.ONE_ELEMENT_PER_THREAD] if hints.one_element else [],
        "tiling_scores": dict(hints.scores) or dict.fromkeys(sizes, 1),
    }


def mapped_sizes() -> Iterator[dict[str, int]]:
    for x in LENGTHS:
        yield {"x": x}
    for x, y in itertools.product(LENGTHS[::2], LENGTHS[1::2]):
        yield {"x": x, "y": y}
    for x, y, z in itertools.product(LENGTHS[::3], (1, 16, 2048, 1 << 17), (4, 1024)):
        yield {"x": x, "y": y, "z": z}


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_pointwise(on: Callable[[Device], dict[str, Any]], device: Device) -> None:
    meta = on(device)
    compared = 0
    hinted = [
        Hints(),
        Hints(thorough=True),
        Hints(square=True),
        Hints(tuned=False),
        Hints(least_of_thread=4, atomics=True),
        Hints(one_element=True, thorough=True),
    ]
    for sizes, hints in itertools.product(mapped_sizes(), hinted):
        theirs = inductor.pointwise(
            dict(sizes),
            meta,
            tile_hint=TileHint.SQUARE if hints.square else TileHint.DEFAULT,
            min_elem_per_thread=hints.least_of_thread,
            inductor_meta=meta_of(hints, sizes),
            return_configs=True,
        )
        assert described(configs.pointwise(sizes, hints, device)) == described(theirs), (sizes, hints)
        compared += len(theirs)
    assert compared > 1000


def reduced_sizes() -> Iterator[dict[str, int]]:
    for x, r in itertools.product(LENGTHS, LENGTHS[1:-1]):
        yield {"x": x, "r0_": r}
    for x, r0, r1 in itertools.product((1, 64, 4096), (8, 128, 4096), (4, 64, 1024)):
        yield {"x": x, "r0_": r0, "r1_": r1}


HINTED = [
    Hints(
        reduces=cast(Any, reduces),
        loads=loads,
        reductions=1,
        thorough=thorough,
        persistent_block=block,
        dynamic=dynamic,
    )
    for reduces, loads, thorough, block, dynamic in itertools.product(
        ("inner", "outer", "outer-tiny", "unknown"), (1, 3, 12), (False, True), (False, True), (0, 1, 2)
    )
]


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_reductions(on: Callable[[Device], dict[str, Any]], device: Device) -> None:
    meta = on(device)
    for sizes, hints in itertools.product(reduced_sizes(), HINTED):
        told = {"size_hints": dict(sizes), "inductor_meta": meta_of(hints, sizes), "triton_meta": meta}
        theirs = inductor._reduction_configs(**told, num_dynamic=hints.dynamic)
        assert described(configs.reduction(sizes, hints, device)) == described(theirs), (sizes, hints)


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_reductions_of_two_mapped_dimensions(on: Callable[[Device], dict[str, Any]], device: Device) -> None:
    meta = on(device)
    for x, y, r in itertools.product((1, 16, 1024, 1 << 20), (8, 4096), (8, 512, 65536)):
        sizes = {"x": x, "y": y, "r0_": r}
        for scores in ({}, {"x": 5, "y": 1, "r0_": 0}, {"x": 0, "y": 0, "r0_": 0}, {"x": 0, "y": 3, "r0_": 9}):
            hints = Hints(scores=scores, loads=2)
            told = {"inductor_meta": meta_of(hints, sizes), "triton_meta": meta}
            theirs = inductor._reduction_configs(size_hints=dict(sizes), **told)
            assert described(configs.reduction(sizes, hints, device)) == described(theirs), (sizes, hints)
            if r <= 1024:
                theirs = inductor._persistent_reduction_configs(dict(sizes), REDUCES["unknown"], **told)
                assert described(configs.persistent_reduction(sizes, hints, device)) == described(theirs)


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_persistent_reductions(on: Callable[[Device], dict[str, Any]], device: Device) -> None:
    meta = on(device)
    for sizes, hints in itertools.product(reduced_sizes(), HINTED[::3]):
        if sizes["r0_"] * sizes.get("r1_", 1) > 32768:
            continue
        told = (dict(sizes), REDUCES[hints.reduces], meta_of(hints, sizes), meta)
        theirs = inductor._persistent_reduction_configs(*told)
        assert described(configs.persistent_reduction(sizes, hints, device)) == described(theirs), (sizes, hints)


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize("persistent", [False, True])
def test_cooperative_reductions_and_scans(
    on: Callable[[Device], dict[str, Any]], device: Device, persistent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    meta = on(device)
    made: list[Any] = []
    monkeypatch.setattr(inductor, "cached_autotune", lambda *_, configs, **__: made.append(configs))
    for x, r in itertools.product((1, 2, 16, 64), (1 << 12, 1 << 15, 1 << 20)):
        sizes = {"x": x, "r0_": r}
        hints = Hints(reduces="inner", loads=2)
        told = {**meta_of(hints, sizes), "persistent_reduction": persistent}
        if not (persistent and r > 1 << 16):
            inductor.cooperative_reduction(dict(sizes), REDUCES["inner"], meta, "", dict(told))
            ours = configs.cooperative_reduction(sizes, hints, device, persistent=persistent)
            assert described(ours) == described(made.pop()), sizes
        inductor.split_scan(dict(sizes), REDUCES["inner"], meta, "", dict(told))
        assert described(configs.split_scan(sizes, hints, device)) == described(made.pop()), sizes


def test_the_others(on: Callable[[Device], dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    meta = on(H100)
    made: list[Any] = []
    monkeypatch.setattr(inductor, "cached_autotune", lambda _, configs, **__: made.append(configs))
    inductor.template(3, 8, meta)
    assert described(configs.template(3, 8)) == described(made.pop())
    for thorough in (False, True):
        inductor.foreach(meta, inductor_meta={"max_autotune": thorough})
        assert described(configs.foreach(Hints(thorough=thorough))) == described(made.pop())
    listed = [{"BLOCK": 64, "num_warps": 2, "num_stages": 3}, {"BLOCK": 128}]
    for given in (listed, []):
        inductor.user_autotune([{"num_warps": 4, "num_stages": 3, **one} for one in given], meta)
        ours = configs.user(given)
        assert described(ours) == described(made.pop()) and all(config.num_ctas == 1 for config in ours)
    for wrong in ({"x": 1, "y": 1, "z": 1, "w": 1}, {}):
        with pytest.raises(NoConfig, match="a pointwise kernel maps x"):
            configs.pointwise(wrong, Hints(), H100)


def test_a_block_is_halved_by_torchs_rule(on: Callable[[Device], dict[str, Any]]) -> None:
    halved = 0
    told = itertools.product((H100, MI300), (16, 40, 128, 255), (64, 4096, 1 << 20), (64, 2048), (4, 16))
    for device, registers, rows, length, warps in told:
        config = Config({"XBLOCK": 2, "R0_BLOCK": length}, num_warps=warps, num_stages=1)
        result = SimpleNamespace(config=config, kernel=SimpleNamespace(n_regs=registers))
        tuner = SimpleNamespace(
            device_props=on(device)["device"],
            compile_results=[result],
            size_hints={"x": rows, "r0_": 1 << 16},
            inductor_meta={},
            _ensure_kernel_loaded=lambda: None,
        )
        theirs = list(inductor.CachingAutotuner._iter_rblock_scale_candidates(tuner))
        ours = configs.halved_rblock(config, rows, registers, device)
        assert described([ours] if ours else []) == described(theirs)
        halved += len(theirs)
    assert halved > 4


# ---- grids

_NUMBERS = {"xnumel": 1_000_003, "ynumel": 70_001 * 32, "znumel": 77, "r0_numel": 12_345}
_BLOCKS = {"XBLOCK": 128, "YBLOCK": 32, "ZBLOCK": 8, "R0_BLOCK": 512, "RSPLIT": 16}


def theirs(kind: str, values: dict[str, Any], **meta: Any) -> tuple[int, ...]:
    made = inductor.GridExpr.from_meta({"grid_type": kind, **meta}, values)
    return tuple(made.eval_slow(values))


@pytest.mark.parametrize(
    ("ours", "kind"),
    [
        (grids.grid_1d, "Grid1D"),
        (grids.grid_2d, "Grid2D"),
        (grids.grid_2d_overflow, "Grid2DWithYZOverflow"),
        (grids.grid_3d, "Grid3D"),
        (grids.cooperative_grid, "CooperativeReductionGrid"),
    ],
)
def test_grids(ours: Callable[[Any], tuple[int, ...]], kind: str) -> None:
    for y in (0, 1, 32, 65535 * 32, 65535 * 32 + 1, 70_001 * 32):
        values = {**_NUMBERS, **_BLOCKS, "ynumel": y}
        assert ours(values) == theirs(kind, values)


def test_a_grid_of_a_scan() -> None:
    values = {**_NUMBERS, "R0_BLOCK": 512, "XBLOCK": 1}
    assert grids.split_scan_grid(values) == theirs("SplitScanGrid", values)


@pytest.mark.parametrize("least", [0, 100_000])
@pytest.mark.parametrize("with_y", [False, True])
def test_grids_of_combined_kernels(least: int, with_y: bool) -> None:
    parts = [
        grids.Part("xnumel_0", 500 if with_y else None),
        grids.Part(4096, "ynumel_1" if with_y else None),
        grids.Part(77, single=True),
    ]
    meta = {"num_kernels": 3, "min_blocks": least, "default_config": None}
    meta |= {"xnumel_0": None, "xnumel_1": 4096, "xnumel_2": 77}
    meta |= {"no_x_dim_0": False, "no_x_dim_1": False, "no_x_dim_2": True}
    if with_y:
        meta |= {"ynumel_0": 500, "ynumel_1": None}
    values = {**_BLOCKS, "xnumel_0": 9999, "ynumel_1": 3_000_000}
    for made, kind in (
        (grids.sequential, "SequentialComboKernelGrid"),
        (grids.round_robin, "RoundRobinComboKernelGrid"),
    ):
        assert made(parts, least)(values) == theirs(kind, values, combo_grid_meta=meta)
