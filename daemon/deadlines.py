"""What is due when: one moment for each key, and the next of them all.

Setting, clearing and taking cost O(log n); a moment that was replaced stays in the heap until it surfaces.
"""

import heapq
import itertools
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """See the module's docstring; moments are seconds on the caller's clock."""

    def __init__(self) -> None:
        self._moments: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._order = itertools.count()

    def __len__(self) -> int:
        return len(self._moments)

    def __contains__(self, key: K) -> bool:
        return key in self._moments

    def set(self, key: K, moment: float) -> None:
        """The key is due then, and not when it was due before."""
        self._moments[key] = moment
        heapq.heappush(self._heap, (moment, next(self._order), key))

    def clear(self, key: K) -> None:
        """The key is not due at all."""
        self._moments.pop(key, None)

    def next(self) -> float | None:
        """When the first key is due; None if nothing is."""
        while self._heap and self._moments.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> Iterator[K]:
        """Take the keys whose moment has come, the earliest first."""
        while (moment := self.next()) is not None and moment <= now:
            key = heapq.heappop(self._heap)[2]
            del self._moments[key]
            yield key
