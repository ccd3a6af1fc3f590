"""What is known of jobs beside the scheduler's decisions: their bytes, who runs them, and what came of them."""

from compilepool.daemon.events import RequestId
from compilepool.daemon.objects import Stored
from compilepool.daemon.payload import Payload
from compilepool.protocol.errors import ProtocolError


class InFlight:
    """Payloads by request until a job has taken them, then by job; `results` of jobs that are being answered."""

    def __init__(self) -> None:
        self.arrived: dict[RequestId, Payload] = {}
        self.results: dict[int, Stored] = {}
        self._payloads: dict[int, Payload] = {}
        self._forkservers: dict[int, int] = {}

    def __contains__(self, job: int) -> bool:
        return job in self._payloads

    def __getitem__(self, job: int) -> Payload:
        return self._payloads[job]

    def take(self, job: int, request: RequestId) -> Payload:
        """The job is about what this request brought."""
        payload = self._payloads[job] = self.arrived.pop(request)
        return payload

    def given(self, job: int, forkserver: int) -> Payload:
        """A forkserver is told to run it."""
        self._forkservers[job] = forkserver
        return self._payloads[job]

    def run_by(self, forkserver: int, job: int) -> Payload:
        """The job that this forkserver speaks of; ProtocolError if it is none of its."""
        if self._forkservers.get(job) != forkserver:
            raise ProtocolError(f"job {job} was not given to this forkserver")
        return self._payloads[job]

    def ended(self, job: int) -> None:
        """Its forkserver has said how it ended: it has no more to say of it."""
        self._forkservers.pop(job, None)

    def disown(self, forkserver: int) -> None:
        """Nothing that it may still send is an answer."""
        self._forkservers = {job: number for job, number in self._forkservers.items() if number != forkserver}

    def forget(self, job: int) -> None:
        """It is gone."""
        for kept in (self._payloads, self.results, self._forkservers):
            kept.pop(job, None)
