"""Who compiles which config of a kernel, when several workers do: a byte and a lock for each config.

The board is an anonymous memory file that the workers of one job share. Byte n says whether config n was ever taken; a
POSIX lock on byte n is held by whoever compiles it, for as long as it does. The kernel gives the lock back when its
holder dies, so nobody waits for a dead worker, and nothing has to be said twice.

What a worker compiled lies in the Triton cache directory that they share: to compile it again is to read it.
"""

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator

_TAKEN = b"\1"


class Board:
    """See the module's docstring; `tell` is called with the number of configs that nobody has taken."""

    def __init__(self, descriptor: int, tell: Callable[[int], None] = lambda _: None) -> None:
        self._descriptor = descriptor
        self._tell = tell

    def __repr__(self) -> str:
        return f"<Board [configs: {len(self)} | unclaimed: {self.unclaimed}]>"

    def __len__(self) -> int:
        return os.fstat(self._descriptor).st_size

    @property
    def unclaimed(self) -> int:
        """How many configs nobody has taken."""
        return os.pread(self._descriptor, len(self), 0).count(b"\0")

    def lay_out(self, configs: int) -> None:
        """There are so many configs, and nobody has taken any."""
        os.ftruncate(self._descriptor, configs)

    def claims(self, order: Iterable[int]) -> Iterator[int]:
        """Take configs, in this order, that nobody has taken; each is held until the next is asked for."""
        for config in order:
            if self._take(config):
                self._tell(self.unclaimed)
                try:
                    yield config
                finally:
                    self._unlock(config)

    def wait(self, config: int) -> None:
        """Until nobody compiles it: it is done, or who took it has died."""
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 1, config)
        self._unlock(config)

    def _take(self, config: int) -> bool:
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, config)
        except (BlockingIOError, PermissionError):
            return False
        if os.pread(self._descriptor, 1, config) == _TAKEN:
            self._unlock(config)
            return False
        os.pwrite(self._descriptor, _TAKEN, config)
        return True

    def _unlock(self, config: int) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, config)


def own_board() -> Board:
    """A board that nobody else sees."""
    return Board(os.memfd_create("compilepool-board"))
