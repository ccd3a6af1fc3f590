"""Coordinate descent: from a good config to a better one, a step along one of its numbers at a time.

    the config that is best so far --> its neighbours: one number doubled or halved (stages: one more or less)
        ^                                 |  one is faster, by more than noise
        '---------------------------------'        none is: it is the result

As Inductor's tuner does it (torch/_inductor/runtime/coordinate_descent_tuner.py). The decisions are here, without a
clock or a compiler: `next` says what to measure, `soon` what may have to be measured after that, whatever comes out.
Who measures has those compiled meanwhile, so that it hardly waits for a compiler.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

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
    _left: list[Point] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._left = list(neighbours(self.best))

    def __repr__(self) -> str:
        return f"<Descent [steps: {self.steps}, left: {len(self._left)} | {dict(self.best)}]>"

    def next(self) -> Point | None:
        """What is to be measured; None: nothing is better than `best`."""
        while self._left:
            candidate = self._left[0]
            if candidate not in self.times:
                return candidate
            self._left.pop(0)
            self._consider(candidate)
        return None

    def told(self, candidate: Point, milliseconds: float | None) -> None:
        """It was measured."""
        self.times[candidate] = milliseconds

    def soon(self, most: int) -> list[Point]:
        """What may be measured next: the other neighbours, and those of what is measured now, should it be better."""
        wanted = [candidate for candidate in self._left if candidate not in self.times]
        for candidate in wanted[:1]:
            wanted = [*wanted, *(one for one in neighbours(candidate) if one not in self.times and one not in wanted)]
        return wanted[:most]

    def _consider(self, candidate: Point) -> None:
        taken, so_far = self.times[candidate], self.times.get(self.best)
        if taken is not None and (so_far is None or taken < so_far * (1 - BETTER)):
            self.best = candidate
            self.steps += 1
            self._left = list(neighbours(candidate))


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
