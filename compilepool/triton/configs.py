"""Configs for common kinds of kernels, from sizes and device: what Inductor would try.

    pointwise, reduction, persistent_reduction, cooperative_reduction, split_scan, template, foreach, user

After PyTorch 2.13, torch/_inductor/runtime/triton_heuristics.py (the functions of the same names), for NVIDIA's and
AMD's GPUs; a test compares them with torch's own over a table of sizes. Left out is what only torch's own code
generation makes use of: native matmuls, mixed-order reductions, TMA's minimal blocks, and determinism's filters.

    configs = pointwise({"x": 1 << 20}, Hints(), Device())
    kernel = compilepool.autotune(configs, key=["xnumel"])(kernel)

Names of blocks are Inductor's: XBLOCK, YBLOCK, ZBLOCK, R0_BLOCK; a persistent reduction has all that it reduces in one
block, and no R0_BLOCK. See `grids` for the grids that belong to them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from triton.runtime.autotuner import Config

from compilepool.triton.shapes import (
    Device,
    NoConfig,
    Sizes,
    mapped,
    power_of_two,
    reduced,
    reducing,
    reducing_tiles,
    shared_out,
)

# Elements of a block of a persistent reduction.
_MOST_PERSISTENT = 4096
_MOST_SPLITS = 64
_LEAST_SCANNED = 256


@dataclass(frozen=True, slots=True)
class Hints:
    """What is known of a kernel.

    reduces: along what is contiguous ('inner'), across it ('outer', and 'outer-tiny' for short ones), or unknown
    loads, reductions: how many its text has; `dynamic`: sizes that are not known when it is compiled
    thorough: try more (Inductor's max-autotune)
    square: two mapped dimensions that are accessed alike; `one_element`: threads may do with one element each
    atomics: it adds to memory that others add to; `persistent_block`: one block may have all that is reduced
    scores: how well accesses along each dimension coalesce, for reductions of two mapped dimensions
    """

    reduces: Literal["inner", "outer", "outer-tiny", "unknown"] = "unknown"
    loads: int = 0
    reductions: int = 0
    dynamic: int = 0
    thorough: bool = False
    square: bool = False
    one_element: bool = False
    atomics: bool = False
    persistent_block: bool = False
    least_of_thread: int = 0
    tuned: bool = True
    scores: Mapping[str, float] = field(default_factory=dict)


def pointwise(sizes: Sizes, hints: Hints, device: Device) -> list[Config]:
    """For a kernel that maps one, two or three dimensions: x, y, z. Raises NoConfig."""
    length = max(256, min(math.prod(sizes.values()) // 128, 1024))
    shapes = _shapes_mapped(len(sizes), length, hints, device)
    if not shapes:
        raise NoConfig(f"{dict(sizes)}: a pointwise kernel maps x, or x and y, or x, y and z")
    return [
        mapped(sizes, block, device, **{"least_of_thread": hints.least_of_thread, **more}) for block, more in shapes
    ]


_Shapes = list[tuple[tuple[int, ...], dict[str, int]]]


def _shapes_mapped(dimensions: int, length: int, hints: Hints, device: Device) -> _Shapes:
    tuned = hints.tuned or hints.thorough
    single = _single_elements(dimensions, length, device) if hints.one_element else []
    match dimensions:
        case 1 if not tuned:
            return [((length,), {})]
        case 1:
            return [((length,), {}), ((length // 2,), {"elements_of_warp": 64}), *single, *_for_hip_1d(hints, device)]
        case 2 if not hints.thorough and (not tuned or (hints.square and not device.is_hip)):
            return [((32, 32), {})]
        case 2:
            blocks = [(32, 32), (64, 64), (256, 16), (16, 256), (length, 1), (1, length)]
            wide = [(64, 32), (128, 16), (128, 32), (32, 512)] if device.is_hip else []
            return [*((block, {}) for block in blocks), *single, *((block, {}) for block in wide)]
        case 3 if not hints.thorough:
            return [((16, 16, 16), {})]
        case 3:
            cubes = [(16, 16, 16), (64, 8, 8), (8, 64, 8), (8, 8, 64), (length, 1, 1), (1, length, 1), (1, 1, length)]
            return [*((block, {}) for block in cubes), *single]
    return []


def _single_elements(dimensions: int, length: int, device: Device) -> _Shapes:
    """Blocks in which each thread has one element; for these, no other number is asked of it."""
    more = {"elements_of_warp": device.warp_size, "least_of_thread": 0}
    ones = [1] * dimensions
    return [((*ones[:at], length // 4, *ones[at + 1 :]), more) for at in range(dimensions)]


def _for_hip_1d(hints: Hints, device: Device) -> _Shapes:
    if not device.is_hip:
        return []
    large: _Shapes = [
        ((device.largest("x"),), {"waves": 2}),
        ((4096,), {}),
        ((2048,), {"warps": 8, "stages": 2, "waves": 1}),
    ]
    return [*large, ((64,), {"warps": 1, "stages": 1})] if hints.atomics else large


def reduction(sizes: Sizes, hints: Hints, device: Device) -> list[Config]:
    """For a kernel that reduces in a loop: x (and y) rows of r0_ (and r1_) elements."""
    return _Reductions(sizes, hints, device).configs()


class _Reductions:
    """One question for configs of reductions."""

    def __init__(self, sizes: Sizes, hints: Hints, device: Device) -> None:
        self._sizes, self._hints, self._device = sizes, hints, device
        self._length = reduced(sizes)
        self._work = hints.loads + hints.reductions
        # Loads and accumulators take registers; smaller blocks do, and Blackwell is better off with them.
        self._intensive = sizes["x"] >= 1024 and self._work >= 10
        self._longest = 1024 if device.major >= 10 or self._intensive else 2048

    def configs(self) -> list[Config]:
        """In the order in which Inductor has them."""
        hints, length = self._hints, self._length
        first = []
        if hints.persistent_block and self._work <= 8:
            first = [self._make(max(4096 // length, 1), min(length, 32768), intensive=self._intensive)]
        contiguous = self._make(2 if length <= 2048 else 1, min(length, self._longest), intensive=self._intensive)
        tiny = self._make(_rows_of_tiny(length), min(length, self._longest), intensive=self._intensive)
        outer = self._outer()
        by_hint = {"inner": contiguous, "outer": outer, "outer-tiny": tiny}
        if "y" not in self._sizes and not hints.thorough and hints.reduces in by_hint:
            return [*first, by_hint[hints.reduces]]
        more = [self._make(64, 64), self._make(8, 512), self._make(64, 4, warps=8)]
        hip = [self._make(1024, 8, warps=4, waves=2), self._make(512, 8, warps=4, waves=1)]
        return [*first, contiguous, outer, tiny, *more, *(hip if self._device.is_hip else [])]

    def _make(
        self, x: int, r: int, *, warps: int | None = None, intensive: bool = False, waves: int | None = None
    ) -> Config:
        sizes, device = self._sizes, self._device
        if "y" in sizes:
            scores = self._hints.scores or dict.fromkeys(sizes, 1.0)
            shape = shared_out(sizes, scores, x * r, device)
            lengths = (shape["x"], shape["y"], shape["r0_"])
            return reducing_tiles(sizes, *lengths, device, register_intensive=intensive, waves=waves)
        inner = self._hints.reduces == "inner"
        return reducing(sizes, x, r, device, warps=warps, register_intensive=intensive, inner=inner, waves=waves)

    def _outer(self) -> Config:
        """Across what is contiguous: rows side by side, for loads of whole vectors."""
        if self._device.is_hip:
            return self._make(64, 8, intensive=self._intensive)
        x, r, warps = self._shape_outer()
        return self._make(x, r, warps=warps, intensive=self._intensive)

    def _shape_outer(self) -> tuple[int, int, int | None]:
        rows, length, hints = self._sizes["x"], self._length, self._hints
        if rows <= 1024:
            # Few rows: short blocks, so that all multiprocessors have one.
            return max(min(rows // 128, 8), 2), min(length, 64), None
        if rows // 4096 <= 8:
            return 16, 32, None
        if hints.dynamic > 1:
            return 64, max(min(length // 64, 64), 8), None
        if hints.dynamic == 1:
            # Sizes that are not known take registers for every index.
            return 64, 1 if hints.loads >= 3 else min(power_of_two(max(length, 128) // 128), 8), None
        x = max(min(256, power_of_two(rows // 4096)), 64)
        if hints.loads < 4 or length <= 128:
            return x, 512 // x, None
        return min(x, 32), 64 if length >= 2048 else 32, 4


def _rows_of_tiny(length: int) -> int:
    return 2 * (256 // length) if length <= 256 else 1


def persistent_reduction(sizes: Sizes, hints: Hints, device: Device) -> list[Config]:
    """For a kernel that has all that it reduces in one block."""
    rows, length = sizes["x"], reduced(sizes)
    inner = hints.reduces == "inner"
    blocks = [1, 4, 8, 16, 32, 64, 128, 256] if device.is_hip else [1, 8, 32, 128]
    tiny = reducing(sizes, _rows_of_tiny(length), length, device)
    configs = _persistent(sizes, blocks, hints, device)
    if "y" in sizes:
        pass
    elif hints.thorough:
        configs += [tiny] if device.is_hip and tiny not in configs else []
    elif inner and length >= 256:
        configs = configs[:1]
        if length <= 1024 and rows // 8 >= 128:
            # One warp for several rows needs no shared memory.
            x = min(1024 // length, 8)
            one_warp = {"warps": 1, "least_warps": 1, "register_intensive": True, "inner": True}
            configs = [reducing(sizes, x, length, device, **one_warp)]  # type: ignore[arg-type]
    elif hints.reduces == "outer":
        configs = configs[-1:]
    elif hints.reduces == "outer-tiny":
        configs = [tiny]
    for config in configs:
        config.kwargs = {name: value for name, value in config.kwargs.items() if not name.startswith("R")}
    return configs


def _persistent(sizes: Sizes, blocks: Sequence[int], hints: Hints, device: Device) -> list[Config]:
    rows, length = sizes["x"], reduced(sizes)
    if "y" in sizes:
        scores = hints.scores or dict.fromkeys(sizes, 1.0)
        shapes = [
            shared_out(sizes, {name: scores[name] for name in "xy"}, block, device)
            for block in blocks
            if block * length <= _MOST_PERSISTENT
        ]
        return [reducing_tiles(sizes, shape["x"], shape["y"], length, device) for shape in shapes]
    return [
        reducing(sizes, block, length, device, register_intensive=True, inner=hints.reduces == "inner")
        for block in blocks
        if block == 1 or (length * block <= _MOST_PERSISTENT and block <= rows)
    ]


def cooperative_reduction(sizes: Sizes, hints: Hints, device: Device, *, persistent: bool = False) -> list[Config]:
    """For one that several blocks make together: RSPLIT of them for each row, all running at once."""
    if len(sizes) != 2:
        raise NoConfig(f"{dict(sizes)}: a cooperative reduction has x and r0_")
    rows, length = sizes["x"], sizes["r0_"]
    # They wait for each other: more blocks than multiprocessors would wait for ever.
    target = power_of_two(device.multiprocessors + 1) // 2
    split = max(1, min(length, target // rows, _MOST_SPLITS))
    part = {"x": rows, "r0_": length // split}
    configs = (persistent_reduction if persistent else reduction)(part, hints, device)
    for config in configs:
        config.kwargs["RSPLIT"] = split
    return configs


def split_scan(sizes: Sizes, hints: Hints, device: Device, *, least: int = _LEAST_SCANNED) -> list[Config]:
    """For a scan whose blocks hand on what they have: long ones, for few hand-overs."""
    if len(sizes) != 2:
        raise NoConfig(f"{dict(sizes)}: a split scan has x and r0_")
    configs = reduction(sizes, hints, device)
    for config in configs:
        config.kwargs = {
            name: max(value, least) if name.startswith("R") else value for name, value in config.kwargs.items()
        }
    return configs


def template(num_stages: int, num_warps: int) -> list[Config]:
    """For a kernel whose blocks are written into its text."""
    return [Config({}, num_stages=num_stages, num_warps=num_warps)]


def foreach(hints: Hints) -> list[Config]:
    """For one that does the same to many tensors."""
    return [Config({}, num_stages=1, num_warps=warps) for warps in ((1, 2, 4, 8) if hints.thorough else (8,))]


def user(configs: Sequence[Mapping[str, Any]]) -> list[Config]:
    """As a user has listed them: block lengths by name, with num_warps, num_stages, num_ctas and maxnreg among them."""
    named = ("num_warps", "num_stages", "num_ctas", "maxnreg")
    return [
        Config(
            {name: value for name, value in config.items() if name not in named},
            **{name: config[name] for name in named if name in config},
        )
        for config in configs
    ] or [Config({})]


def halved_rblock(config: Config, rows: int, registers: int, device: Device) -> Config | None:
    """The same with the longest reduced block halved, where fewer registers would let more blocks run; or None.

    registers: of a thread, as the compiled kernel takes them (`CachingAutotuner._dynamic_scale_rblock`)
    """
    lengths = {name: value for name, value in config.kwargs.items() if name.startswith("R")}
    if not lengths or math.prod(lengths.values()) <= 64 or registers <= device.registers // device.threads:
        return None
    blocks = math.ceil(rows / config.kwargs.get("XBLOCK", 1))
    at_once = max(device.registers // (registers * device.warp_size * config.num_warps), 1)
    if blocks <= at_once * device.multiprocessors:
        return None
    longest = max(lengths, key=lambda name: lengths[name])
    halved = {**config.kwargs, longest: lengths[longest] // 2}
    return Config(halved, num_warps=config.num_warps, num_stages=config.num_stages)
