"""From a wish (so many elements in a block) to a config that suits sizes and device.

The rules are Inductor's, as of PyTorch 2.13 (torch/_inductor/runtime/triton_heuristics.py: `triton_config`,
`triton_config_reduction`, `triton_config_tiled_reduction`, `match_target_block_product`, `_num_warps`), and are checked
against it. Sizes are rounded up to powers of two, by name: x, y, z for what is mapped, r0_, r1_ for what is reduced.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from triton.runtime.autotuner import Config

Sizes = Mapping[str, int]
# Blocks in a grid: x, y, z (CUDA's programming guide, technical specifications).
_MOST_BLOCKS = {"x": 2**31 - 1, "y": 65535, "z": 65535}


class NoConfig(ValueError):
    """Sizes that there are no configs for; the message says which there are."""


@dataclass(frozen=True, slots=True)
class Device:
    """What configs depend on; the defaults are an H100's.

    backend: 'cuda' or 'hip'; `major`: of its compute capability
    multiprocessors, registers, threads: how many it has; registers and threads of each
    """

    backend: Literal["cuda", "hip"] = "cuda"
    major: int = 9
    multiprocessors: int = 132
    registers: int = 65536
    threads: int = 2048
    warp_size: int = 32

    @property
    def is_hip(self) -> bool:
        """Whether it is one of AMD's."""
        return self.backend == "hip"

    def largest(self, name: str) -> int:
        """The largest block that is made of a dimension."""
        return {"x": 8192 if self.is_hip else 4096, "y": 1024, "z": 1024, "r0_": 65536, "r1_": 32768}[name]


def power_of_two(count: int) -> int:
    """The next one, the number itself included; 1 for what is less."""
    return 1 if count <= 0 else 1 << (count - 1).bit_length()


def reduced(sizes: Sizes) -> int:
    """Elements that are reduced to one."""
    return math.prod(size for name, size in sizes.items() if name.startswith("r"))


def warps_for(wanted: int, device: Device, *, most: int = 8, least: int = 2, register_intensive: bool = False) -> int:
    """So many warps, within bounds: half as many where they have twice the threads."""
    if device.warp_size == 64:
        most, least = (most + 1) // 2, (least + 1) // 2
    if register_intensive:
        most //= 2
    return power_of_two(min(max(wanted, least), most))


def mapped(
    sizes: Sizes,
    block: Sequence[int],
    device: Device,
    *,
    warps: int | None = None,
    stages: int = 1,
    elements_of_warp: int = 256,
    least_of_thread: int = 0,
    waves: int | None = None,
) -> Config:
    """A config of a pointwise kernel: a block of this shape, as far as sizes and grid allow.

    elements_of_warp: how many make a warp; `least_of_thread`: elements that each thread has at least
    waves: of a compute unit of AMD's, at once
    """
    wished = math.prod(block)
    target = wished // 8 if math.prod(sizes.values()) < wished else wished
    shape = {name: min(length, sizes[name]) for name, length in zip("xyz", block, strict=False)}
    for name in shape:
        # Larger, where there is room, or where the grid would be too large.
        while shape[name] < min(sizes[name], device.largest(name)) and (
            shape[name] * _MOST_BLOCKS[name] < sizes[name] or math.prod(shape.values()) < target
        ):
            shape[name] *= 2
    count = math.prod(shape.values())
    if warps is None:
        warps = warps_for(count // elements_of_warp, device, least=1)
    if count >= 128 and not device.is_hip:
        # Inductor's way around defects of ptxas (pytorch/pytorch#97950).
        warps = max(warps, 4)
    shape["x"] *= math.ceil(max(count, least_of_thread * device.warp_size * warps) / count)
    shape["x"] = min(_within_grid(sizes, shape["x"], warps, device), sizes["x"])
    return _config(shape, warps, stages, device, waves)


def reducing(
    sizes: Sizes,
    x: int,
    r: int,
    device: Device,
    *,
    warps: int | None = None,
    least_warps: int = 2,
    register_intensive: bool = False,
    inner: bool = False,
    waves: int | None = None,
) -> Config:
    """A config of a reduction: x rows of r elements at a time; `inner`: what is reduced is contiguous."""
    shape = {"x": min(x, sizes["x"]), **_unravelled(r, sizes, device)}
    target = math.prod(shape.values())
    if math.prod(sizes.values()) < target:
        target //= 8
    _grow(shape, sizes, target, ["x", *sorted(name for name in shape if name != "x")])
    if warps is None:
        # At least 8 elements for a thread, along what is contiguous.
        warps = (r if inner else math.prod(shape.values())) // 128
    most = 16 if r <= 8192 else 32
    warps = warps_for(warps, device, most=most, least=least_warps, register_intensive=register_intensive)
    shape["x"] = _within_grid(sizes, shape["x"], warps, device)
    for name in sorted(name for name in shape if name != "x"):
        while math.prod(shape.values()) > target and shape[name] > 1:
            shape[name] //= 2
    return _config(shape, warps, 1, device, waves)


def reducing_tiles(
    sizes: Sizes, x: int, y: int, r: int, device: Device, *, register_intensive: bool = False, waves: int | None = None
) -> Config:
    """The same of a kernel that maps two dimensions."""
    shape = {"x": min(x, sizes["x"]), "y": min(y, sizes["y"]), **_unravelled(r, sizes, device)}
    target = math.prod(shape.values())
    if math.prod(sizes.values()) < target:
        target //= 8
    _grow(shape, sizes, target, ["x", *sorted(name for name in shape if name.startswith("r")), "y"])
    warps = warps_for(math.prod(shape.values()) // 256, device, least=1)
    warps = warps_for(warps, device, most=16, register_intensive=register_intensive)
    return _config(shape, warps, 1, device, waves)


def shared_out(sizes: Sizes, scores: Mapping[str, float], product: int, device: Device) -> dict[str, int]:
    """Lengths of a block of so many elements, longest where the scores are highest."""
    total = sum(scores.values())
    if total == 0:
        scores, total = dict.fromkeys(scores, float(product)), product * len(scores)
    # What is reduced has four at least.
    shape = {name: 1 if not name.startswith("r") else 4 for name in scores}
    shares = {name: score / total for name, score in scores.items()}
    for name, score in scores.items():
        if score == 0 and not name.startswith("r"):
            shape[name], shares[name] = 1, 0.0
    count = math.prod(shape.values())
    while count < product and shares:
        name = max(shares, key=lambda name: shares[name])
        if shape[name] >= device.largest(name) or shape[name] >= sizes[name]:
            del shares[name]
            continue
        shape[name] *= 2
        shares[name] /= 2
        count *= 2
    return shape


def _unravelled(r: int, sizes: Sizes, device: Device) -> dict[str, int]:
    """So many reduced elements as lengths of a block, the last dimension first: what is contiguous."""
    left = min(r, reduced(sizes))
    shape = {}
    for name in sorted((name for name in sizes if name.startswith("r")), reverse=True):
        shape[name] = min(sizes[name], device.largest(name), left)
        left //= shape[name]
    return dict(sorted(shape.items(), reverse=True))


def _grow(shape: dict[str, int], sizes: Sizes, target: int, names: Sequence[str]) -> None:
    for name in names:
        while shape[name] < sizes[name] and math.prod(shape.values()) < target:
            shape[name] *= 2


def _within_grid(sizes: Sizes, x: int, warps: int, device: Device) -> int:
    """A block long enough that the grid is none too large: AMD's bound is of threads."""
    blocks = math.ceil(sizes["x"] / x)
    of_block = warps * device.warp_size if device.is_hip else 1
    while blocks * of_block > _MOST_BLOCKS["x"] and x < sizes["x"] and x < device.largest("x"):
        x, blocks = 2 * x, blocks // 2
    if blocks > _MOST_BLOCKS["x"]:
        raise NoConfig(f"{sizes['x']} rows are more than a grid takes in blocks of {x}: split the kernel's work")
    return x


def _config(shape: Mapping[str, int], warps: int, stages: int, device: Device, waves: int | None) -> Config:
    values: dict[str, Any] = {f"{name.upper()}BLOCK": length for name, length in shape.items()}
    if device.is_hip and waves is not None:
        values["waves_per_eu"] = waves
    return Config(values, num_warps=warps, num_stages=stages)
