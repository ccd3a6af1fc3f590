"""How long a kernel is expected to compile, so that the longest start first.

What was measured before wins: a kernel's source compiles about as long for another target, toolchain or environment.
A source that was never seen is judged by its text. What one owner's compiles took tells nothing to another.
"""

from collections import OrderedDict

from compilepool.daemon.owner import Owner

REMEMBERED = 20_000


class Estimator:
    """Expected CPU seconds by owner and source digest; forgets the least recently used."""

    def __init__(self) -> None:
        self._seconds: OrderedDict[tuple[Owner, str], float] = OrderedDict()

    def expected(self, owner: Owner, digest: str, source: bytes) -> float:
        """CPU seconds that compiling this source is expected to take."""
        if (owner, digest) in self._seconds:
            self._seconds.move_to_end((owner, digest))
            return self._seconds[owner, digest]
        return from_text(source)

    def learn(self, owner: Owner, digest: str, seconds: float) -> None:
        """A compile of this source took so many CPU seconds."""
        self._seconds[owner, digest] = seconds
        self._seconds.move_to_end((owner, digest))
        if len(self._seconds) > REMEMBERED:
            self._seconds.popitem(last=False)


def from_text(source: bytes) -> float:
    """CPU seconds, judged by the text alone."""
    return len(source) / 10_000
