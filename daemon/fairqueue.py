"""The order in which queued jobs get a slot.

Foreground jobs (a client is blocked on them) come before background ones; so that these get on at all, one of them goes
first when `PATIENCE` foreground jobs in a row have. Among equals, the owner comes first who has used the least; within
an owner, clients take turns; within a client, the job that is expected to take longest comes first, since a long job
that starts last is what everybody waits for at the end (resnet50 on 16 workers: 3.26 s as given, 2.63 s longest first).

What an owner has used is counted in seconds of slots (start-time fair queueing; Goyal, Vin and Cheng, SIGCOMM 1996): a
job is charged what it is expected to take when it is taken from the queue, and the difference when it is over
(`charge`). Who comes, or comes back, begins where the others are: nobody saves up.

Every operation costs O(log n) in owners and in the jobs of one client; `pop` also passes over owners that are barred.
Removal is lazy: a removed job stays in its heap until it surfaces.
"""

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from compilepool.daemon.owner import Owner
from compilepool.protocol.messages import Priority

PATIENCE = 50
_ORDER: tuple[Priority, ...] = ("foreground", "background")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job stands in the queue: its class, whose turn it takes, and its expected seconds."""

    priority: Priority
    owner: Owner
    client: int
    expected: float


def _nobody(_owner: Owner) -> bool:
    return False


class FairQueue:
    """Job numbers with their places; `pop` gives the next one."""

    def __init__(self) -> None:
        self._places: dict[int, Place] = {}
        self._used: dict[Owner, float] = {}
        self._floor = 0.0
        self._owners = {priority: _Owners(self._used) for priority in _ORDER}
        self._counts: dict[Priority, int] = dict.fromkeys(_ORDER, 0)
        self._passed_over = 0

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, job: int) -> bool:
        return job in self._places

    def __repr__(self) -> str:
        counts = ", ".join(f"{priority}: {count}" for priority, count in self._counts.items())
        return f"<FairQueue [{counts}]>"

    def push(self, job: int, place: Place) -> None:
        """Queue a job; a job that is queued already moves to its new place."""
        self.remove(job)
        if not any(place.owner in owners for owners in self._owners.values()):
            self._used[place.owner] = max(self._used.get(place.owner, 0.0), self._floor)
        self._places[job] = place
        self._counts[place.priority] += 1
        self._owners[place.priority].push(job, place)

    def remove(self, job: int) -> None:
        """Take a job out; nothing happens if it is not queued."""
        if place := self._places.pop(job, None):
            self._counts[place.priority] -= 1

    def pop(self, barred: Callable[[Owner], bool] = _nobody) -> int | None:
        """The job whose turn it is, of those whose owner is not barred, or None; its owner is charged for it."""
        for priority in _ORDER if self._passed_over < PATIENCE else _ORDER[::-1]:
            taken = self._owners[priority].pop(barred, self._is_queued)
            if taken is not None:
                job, place = taken
                self.remove(job)
                self._count(priority)
                self._floor = max(self._floor, self._used[place.owner])
                self.charge(place.owner, place.expected)
                return job
        return None

    def charge(self, owner: Owner, seconds: float) -> None:
        """The owner has used so much more (or, where less was used than expected, less)."""
        self._used[owner] = self._used.get(owner, self._floor) + seconds
        for owners in self._owners.values():
            owners.moved(owner)

    def _is_queued(self, job: int, place: Place) -> bool:
        return self._places.get(job) is place

    def _count(self, popped: Priority) -> None:
        passed_over = popped == "foreground" and self._counts["background"]
        self._passed_over = self._passed_over + 1 if passed_over else 0


class _Owners:
    """Owners in the order of what they have `used`, each with a ring of its clients, each with a heap of its jobs."""

    def __init__(self, used: dict[Owner, float]) -> None:
        self._used = used
        self._order: list[tuple[float, int, Owner]] = []
        self._entries: dict[Owner, int] = {}
        self._clients: dict[Owner, OrderedDict[int, list[tuple[float, int, Place]]]] = {}
        self._numbers = itertools.count()

    def __contains__(self, owner: Owner) -> bool:
        return owner in self._clients

    def push(self, job: int, place: Place) -> None:
        if place.owner not in self._clients:
            self._clients[place.owner] = OrderedDict()
            self.moved(place.owner)
        heapq.heappush(self._clients[place.owner].setdefault(place.client, []), (-place.expected, job, place))

    def moved(self, owner: Owner) -> None:
        """What it has used has changed."""
        if owner in self._clients:
            self._entries[owner] = next(self._numbers)
            heapq.heappush(self._order, (self._used[owner], self._entries[owner], owner))

    def pop(self, barred: Callable[[Owner], bool], is_queued: Callable[[int, Place], bool]) -> tuple[int, Place] | None:
        passed = []
        taken = None
        while taken is None and self._order:
            entry = heapq.heappop(self._order)
            _, number, owner = entry
            if self._entries.get(owner) != number:
                continue
            if barred(owner):
                passed.append(entry)
                continue
            taken = self._take(owner, is_queued)
            if taken is None:
                del self._clients[owner], self._entries[owner]
        for entry in passed:
            heapq.heappush(self._order, entry)
        return taken

    def _take(self, owner: Owner, is_queued: Callable[[int, Place], bool]) -> tuple[int, Place] | None:
        clients = self._clients[owner]
        while clients:
            client, heap = next(iter(clients.items()))
            while heap:
                _, job, place = heapq.heappop(heap)
                if is_queued(job, place):
                    clients.move_to_end(client)
                    return job, place
            del clients[client]
        return None
