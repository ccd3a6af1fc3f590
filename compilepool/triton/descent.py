"""Coordinate descent: from a good config to a better one, a step along one of its numbers at a time.

    the config that is best so far --> its neighbours: one number doubled or halved (stages: one more or less)
        ^                                 |  one is faster, by more than noise
        '---------------------------------'        none is: it is the result

As Inductor's tuner does it (torch/_inductor/runtime/coordinate_descent_tuner.py), but that neighbours are taken in any
order, as they are compiled. The decisions are here, without a clock or a compiler: `wanted` says what is to be
measured, `soon` what may have to be measured after that, whatever comes out. Who measures has those compiled
meanwhile, so that it hardly waits for a compiler.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

# What is faster by less is noise.
BETTER = 0.001
_MOST_WARPS, _MOST_STAGES, _MOST_BLOCK = 16, 8, 4096
# A block of a million elements is Triton's own bound (TRITON_MAX_TENSOR_NUMEL).
_MOST_ELEMENTS = 1 << 20

Point = tuple[tuple[str, int], ...]


def point(values: Mapping[str, int]) -> Point:
    """A config's numbers, as something that can be a key."""
    return tuple(sorted(values.items()))


@dataclass
class Descent:
    """One descent.

    best: where it is
    times: milliseconds of what was measured, by anybody; None: it can't be launched
    """

    best: Point
    times: dict[Point, float | None]
    steps: int = 0

    def __repr__(self) -> str:
        return f"<Descent [steps: {self.steps}, wanted: {len(self.wanted())} | {dict(self.best)}]>"

    def wanted(self) -> list[Point]:
        """What is to be measured, in any order; nothing: `best` is better than all that is beside it."""
        while True:
            beside = list(neighbours(self.best))
            better = next((one for one in beside if self._is_better(one)), None)
            if better is None:
                return [one for one in beside if one not in self.times]
            self.best = better
            self.steps += 1

    def told(self, candidate: Point, milliseconds: float | None) -> None:
        """It was measured."""
        self.times[candidate] = milliseconds

    def soon(self, most: int) -> list[Point]:
        """What may be wanted next: what is beside the candidates, should one of them be better."""
        wanted = self.wanted()
        beside = dict.fromkeys(one for candidate in wanted for one in neighbours(candidate))
        return [one for one in beside if one not in self.times and one not in wanted][:most]

    def _is_better(self, candidate: Point) -> bool:
        taken, so_far = self.times.get(candidate), self.times.get(self.best)
        return taken is not None and (so_far is None or taken < so_far * (1 - BETTER))


def neighbours(of: Point) -> Iterator[Point]:
    """One number changed by one step, each way, within what compilers take."""
    values = dict(of)
    for name, value in of:
        for changed in _steps(name, value):
            candidate = {**values, name: changed}
            if _elements(candidate) <= _MOST_ELEMENTS:
                yield point(candidate)


def _steps(name: str, value: int) -> list[int]:
    match name:
        case "num_warps":
            return [step for step in (value * 2, value // 2) if 1 <= step <= _MOST_WARPS]
        case "num_stages":
            return [step for step in (value + 1, value - 1) if 1 <= step <= _MOST_STAGES]
        case _ if is_block(value):
            return [step for step in (value * 2, value // 2) if 1 <= step <= _MOST_BLOCK]
    return []


def is_block(value: object) -> bool:
    """Whether a number is one that may be doubled and halved."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0 and value & (value - 1) == 0


def _elements(values: Mapping[str, int]) -> int:
    """Of the largest tile that these blocks can make two by two; more than any kernel has of them."""
    lengths = sorted((value for name, value in values.items() if "BLOCK" in name.upper()), reverse=True)
    return lengths[0] * (lengths[1] if len(lengths) > 1 else 1) if lengths else 1
