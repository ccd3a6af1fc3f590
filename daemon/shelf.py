"""The store as the engine uses it: threads wait for the disk, and what is being written counts as there.

Readers take turns: of one client's kernels as many are looked up at once as there are threads, so that a client which
asks for thousands leaves room for the next.
"""

from collections import Counter
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakValueDictionary

import anyio
import anyio.abc
import anyio.to_thread

from compilepool.daemon.objects import Stored
from compilepool.daemon.store import Store
from compilepool.protocol.messages import Identity

T = TypeVar("T")

# The page cache answers most reads: two threads keep one slow read from holding up the others. Nobody waits for writes.
READING_THREADS = 2
WRITING_THREADS = 1
# Of one owner: the disk writes hundreds of megabytes a second.
UNWRITTEN_BYTES = 256 << 20


class Shelf:
    """See the module's docstring; `tasks` is where writes go on."""

    def __init__(self, store: Store, tasks: anyio.abc.TaskGroup) -> None:
        self._store = store
        self._tasks = tasks
        self._publishing: dict[str, Stored] = {}
        self._unwritten: Counter[str] = Counter()
        self._reading = anyio.CapacityLimiter(READING_THREADS)
        self._turns: WeakValueDictionary[int, anyio.Semaphore] = WeakValueDictionary()
        self._writing = anyio.CapacityLimiter(WRITING_THREADS)

    @property
    def store(self) -> Store:
        """For what is said of it; to use it may block."""
        return self._store

    @property
    def counters(self) -> dict[str, int]:
        """What went wrong."""
        store = self._store
        return {"store_damaged": store.damaged, "store_errors": store.errors, "store_evicted": store.evicted}

    async def get(self, keys: tuple[str, ...], client: int) -> Stored | None:
        """The first of these that is known."""
        if not keys:
            return None
        for key in keys:
            if (stored := self._publishing.get(key) or self._store.glance(key)) is not None:
                return stored
        turn = self._turns.setdefault(client, anyio.Semaphore(READING_THREADS))
        async with turn:
            for key in keys:
                # Whoever asks while it is being written must not cause a second compile.
                stored = self._publishing.get(key)
                if stored is None:
                    stored = await anyio.to_thread.run_sync(self._store.get, key, limiter=self._reading)
                if stored is not None:
                    return stored
        return None

    def put(self, key: str, owner: str, identity: Identity, stored: Stored) -> None:
        """Keep it; nothing is kept of who brings more than the disk takes."""
        size = sum(map(len, stored.segments))
        if self._unwritten[owner] + size > UNWRITTEN_BYTES and self._unwritten[owner]:
            return
        self._unwritten[owner] += size
        self._publishing[key] = stored
        self._tasks.start_soon(self._put, key, owner, identity, stored)

    async def _put(self, key: str, owner: str, identity: Identity, stored: Stored) -> None:
        with anyio.CancelScope(shield=True):
            await self.change(lambda store: store.put(key, owner, identity, stored))
        self._publishing.pop(key, None)
        self._unwritten[owner] -= sum(map(len, stored.segments))
        if not self._unwritten[owner]:
            del self._unwritten[owner]

    async def recover(self) -> None:
        """Bring it in order, after whatever end it had."""
        await self.change(Store.recover)

    async def close(self) -> None:
        """Give it up, for a successor, when what is being written is written."""
        with anyio.CancelScope(shield=True):
            await self.change(Store.close)

    async def change(self, use: Callable[[Store], T]) -> T:
        """Let `use` have the store, when those that came before are done with it."""
        return await anyio.to_thread.run_sync(use, self._store, limiter=self._writing)
