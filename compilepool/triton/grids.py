"""Grids for kernels whose configs are those of `configs`: functions of the arguments by name, as Triton takes them.

    kernel[grids.grid_1d](x, out, xnumel)

After PyTorch 2.13, torch/_inductor/runtime/triton_heuristics.py (`GridExpr` and its kinds). A kernel's sizes are its
arguments xnumel, ynumel, znumel and r0_numel; blocks are its config's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Values = Mapping[str, Any]
Grid = tuple[int, int, int]
_MOST_Y = 65535


def blocks(count: int, length: int | None) -> int:
    """How many blocks of this length there are."""
    return -(-count // (length or 1))


def grid_1d(values: Values) -> Grid:
    """Over x."""
    return blocks(values["xnumel"], values.get("XBLOCK")), 1, 1


def grid_2d(values: Values) -> Grid:
    """Over x and y."""
    return blocks(values["xnumel"], values.get("XBLOCK")), blocks(values["ynumel"], values.get("YBLOCK")), 1


def grid_2d_overflow(values: Values) -> Grid:
    """Over x and y, where y may have more blocks than a grid takes: they go on in z."""
    return blocks(values["xnumel"], values.get("XBLOCK")), *_overflowing(blocks(values["ynumel"], values.get("YBLOCK")))


def grid_3d(values: Values) -> Grid:
    """Over x, y and z."""
    x, y, _ = grid_2d(values)
    return x, y, blocks(values["znumel"], values.get("ZBLOCK"))


def cooperative_grid(values: Values) -> Grid:
    """Blocks that reduce a row together, side by side; rows along y."""
    return values["RSPLIT"], blocks(values["xnumel"], values.get("XBLOCK")), 1


def split_scan_grid(values: Values) -> Grid:
    """Parts of a row, side by side; rows along y, one at a time."""
    return blocks(values["r0_numel"], values.get("R0_BLOCK")), values["xnumel"], 1


@dataclass(frozen=True, slots=True)
class Part:
    """One of the kernels that a combined one consists of.

    xnumel, ynumel: its sizes, or names of the arguments that have them; `ynumel` of None: it maps x alone
    single: it has a block for each row, whatever XBLOCK is
    """

    xnumel: int | str
    ynumel: int | str | None = None
    single: bool = False

    def _size(self, size: int | str, values: Values) -> int:
        return int(values[size]) if isinstance(size, str) else size

    def blocks(self, values: Values) -> int:
        """Along x."""
        return blocks(self._size(self.xnumel, values), 1 if self.single else values.get("XBLOCK"))

    def rows(self, values: Values) -> int:
        """Along y, before they are made blocks of; 0 for none."""
        return 0 if self.ynumel is None else self._size(self.ynumel, values)


def sequential(parts: Sequence[Part], least: int = 0) -> Callable[[Values], Grid]:
    """A grid for kernels that are combined one after the other: blocks of the first, then those of the second."""

    def grid(values: Values) -> Grid:
        return _combined(parts, sum(part.blocks(values) for part in parts), least, values)

    return grid


def round_robin(parts: Sequence[Part], least: int = 0) -> Callable[[Values], Grid]:
    """A grid for kernels that are combined in turns: as many blocks of each as the longest needs."""

    def grid(values: Values) -> Grid:
        return _combined(parts, max(part.blocks(values) for part in parts) * len(parts), least, values)

    return grid


def _combined(parts: Sequence[Part], x: int, least: int, values: Values) -> Grid:
    x = max(x, least)
    if all(part.ynumel is None for part in parts):
        return x, 1, 1
    return x, *_overflowing(blocks(max(part.rows(values) for part in parts), values.get("YBLOCK")))


def _overflowing(y: int) -> tuple[int, int]:
    layers = blocks(y, _MOST_Y)
    return (blocks(y, layers) if layers else 0), layers
