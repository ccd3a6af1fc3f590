"""Which job every open request waits for, by request and by client; and how much one client may have open.

A client that asks faster than it can be served is refused what is over its cap, with a message that says so: what it
has open costs the daemon memory, and nobody else is to pay for it.
"""

from collections import Counter
from collections.abc import Set

from compilepool.daemon.events import RequestId
from compilepool.daemon.jobs import Job
from compilepool.daemon.owner import SHARED, Owner
from compilepool.protocol.messages import Priority

# The largest of the recorded models has 237 kernels; of all together the sources have 3 MB.
REQUESTS_OF_A_CLIENT = 20_000
BYTES_OF_A_CLIENT = 256 << 20
# All clients of one together; what backends are asked is bounded by the jobs whose workers ask.
BYTES_OF_AN_OWNER = 1 << 30


class Requests:
    """Open requests; a job's `waiters` are kept in step."""

    def __init__(self) -> None:
        self._jobs: dict[RequestId, Job] = {}
        self._of_client: dict[int, dict[RequestId, int]] = {}
        self._bytes: dict[int, int] = {}
        self._behalf: dict[RequestId, int] = {}
        self._asked_by: dict[int, set[RequestId]] = {}
        self._of_owner: Counter[Owner] = Counter()

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, request: RequestId) -> bool:
        return request in self._jobs

    def get(self, request: RequestId) -> Job | None:
        """The job that it waits for."""
        return self._jobs.get(request)

    def of(self, client: int) -> list[RequestId]:
        """The client's requests, in the order in which they came."""
        return list(self._of_client.get(client, ()))

    def over_cap(self, client: int, owner: Owner, size: int) -> str:
        """Why the client may not have one more request open, of so many bytes; '' if it may."""
        if owner != SHARED and self._of_owner[owner] + size > BYTES_OF_AN_OWNER:
            most = BYTES_OF_AN_OWNER >> 20
            return f"what your programs have open would be over {most} MiB, the most that is taken: await some"
        if len(self._of_client.get(client, ())) >= REQUESTS_OF_A_CLIENT:
            return f"this client has {REQUESTS_OF_A_CLIENT} requests open, the most that are taken: await some first"
        if self._bytes.get(client, 0) + size > BYTES_OF_A_CLIENT:
            most = BYTES_OF_A_CLIENT >> 20
            return f"the sources that this client has open would be over {most} MiB, the most that is taken: await some"
        return ""

    def asked_by(self, job: int) -> list[RequestId]:
        """What the workers of a job have open."""
        return sorted(self._asked_by.get(job, ()))

    def add(self, request: RequestId, job: Job, priority: Priority, size: int, behalf: int | None = None) -> None:
        """It waits for this job, and holds so many bytes; `behalf`: of another job's worker."""
        if behalf is not None:
            self._behalf[request] = behalf
            self._asked_by.setdefault(behalf, set()).add(request)
        self._of_owner[job.domain.owner] += size
        job.waiters[request] = priority
        self._jobs[request] = job
        self._of_client.setdefault(request.client, {})[request] = size
        self._bytes[request.client] = self._bytes.get(request.client, 0) + size

    def release(self, request: RequestId) -> None:
        """It waits no more."""
        job = self._jobs.pop(request)
        del job.waiters[request]
        if (behalf := self._behalf.pop(request, None)) is not None:
            self._asked_by[behalf].discard(request)
            if not self._asked_by[behalf]:
                del self._asked_by[behalf]
        job.patience.pop(request, None)
        mine = self._of_client[request.client]
        size = mine.pop(request)
        self._bytes[request.client] -= size
        self._of_owner[job.domain.owner] -= size
        if not self._of_owner[job.domain.owner]:
            del self._of_owner[job.domain.owner]
        if not mine:
            del self._of_client[request.client], self._bytes[request.client]

    def check_invariants(self, waiting: Set[RequestId]) -> None:
        """Raise AssertionError unless exactly these are open, each on record with its client."""
        assert waiting == set(self._jobs)
        assert {request for mine in self._of_client.values() for request in mine} == set(self._jobs)
        assert self._bytes == {client: sum(mine.values()) for client, mine in self._of_client.items()}
        assert {r: job for job, asked in self._asked_by.items() for r in asked} == self._behalf
        assert self._behalf.keys() <= self._jobs.keys()
        assert all(request in job.waiters for request, job in self._jobs.items())
