"""How long a kernel is expected to compile, so that the longest start first.

What was measured before wins: a kernel's source compiles about as long for another target, toolchain or environment.
A source that was never seen is judged by its text.
"""

from collections import OrderedDict

REMEMBERED = 20_000


class Estimator:
    """Expected CPU seconds by source digest; forgets the least recently used."""

    def __init__(self) -> None:
        self._seconds: OrderedDict[str, float] = OrderedDict()

    def expected(self, digest: str, source: bytes) -> float:
        """CPU seconds that compiling this source is expected to take."""
        if digest in self._seconds:
            self._seconds.move_to_end(digest)
            return self._seconds[digest]
        return from_text(source)

    def learn(self, digest: str, seconds: float) -> None:
        """A compile of this source took so many CPU seconds."""
        self._seconds[digest] = seconds
        self._seconds.move_to_end(digest)
        if len(self._seconds) > REMEMBERED:
            self._seconds.popitem(last=False)


def from_text(source: bytes) -> float:
    """CPU seconds, judged by the text alone."""
    return len(source) / 10_000
