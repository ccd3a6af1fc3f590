"""Which job every open request waits for, by request and by client."""

from collections.abc import Set

from compilepool.daemon.events import RequestId
from compilepool.daemon.jobs import Job
from compilepool.protocol.messages import Priority


class Requests:
    """Open requests; a job's `waiters` are kept in step."""

    def __init__(self) -> None:
        self._jobs: dict[RequestId, Job] = {}
        self._of_client: dict[int, dict[RequestId, None]] = {}

    def __contains__(self, request: RequestId) -> bool:
        return request in self._jobs

    def get(self, request: RequestId) -> Job | None:
        """The job that it waits for."""
        return self._jobs.get(request)

    def of(self, client: int) -> list[RequestId]:
        """The client's requests, in the order in which they came."""
        return list(self._of_client.get(client, ()))

    def add(self, request: RequestId, job: Job, priority: Priority) -> None:
        """It waits for this job."""
        job.waiters[request] = priority
        self._jobs[request] = job
        self._of_client.setdefault(request.client, {})[request] = None

    def release(self, request: RequestId) -> None:
        """It waits no more."""
        del self._jobs.pop(request).waiters[request]
        mine = self._of_client[request.client]
        del mine[request]
        if not mine:
            del self._of_client[request.client]

    def check_invariants(self, waiting: Set[RequestId]) -> None:
        """Raise AssertionError unless exactly these are open, each on record with its client."""
        assert waiting == set(self._jobs)
        assert {request for mine in self._of_client.values() for request in mine} == set(self._jobs)
        assert all(request in job.waiters for request, job in self._jobs.items())
