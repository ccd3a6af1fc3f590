"""Which kernels are not tried again for a while, because they kill their workers.

A worker that dies, or has to be stopped, is its kernel's fault: nothing else runs in it. Once may be bad luck (somebody
ran `kill`, the host was short of memory); a key that did it `STRIKES` times in a row is refused for `COOLING_SECONDS`,
with what became of it the last time. A compile that succeeds, or fails like a compile, clears it.
"""

from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from compilepool.daemon.events import Domain
from compilepool.protocol.errors import Failure, FailureKind

DEADLY: frozenset[FailureKind] = frozenset({"worker-crashed", "timeout", "out-of-memory"})
STRIKES = 2
COOLING_SECONDS = 300.0
# Each is a key and a sentence.
REMEMBERED, KEPT_CHARACTERS = 10_000, 400


@dataclass(slots=True)
class _Record:
    """How often in a row, what was said last, and until when it counts."""

    strikes: int
    failure: Failure
    until: float


class Blame:
    """Keys whose workers died; forgets the oldest."""

    def __init__(self) -> None:
        self._records: OrderedDict[tuple[Domain, str], _Record] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def ended(self, domain: Domain, key: str, failure: Failure | None, now: float) -> None:
        """A job with this key ended so; None: it succeeded."""
        record = self._records.pop((domain, key), None)
        if failure is None or failure.kind not in DEADLY:
            return
        failure = msgspec.structs.replace(failure, message=failure.message[-KEPT_CHARACTERS:])
        before = record.strikes if record and now < record.until else 0
        self._records[domain, key] = _Record(before + 1, failure, now + COOLING_SECONDS)
        if len(self._records) > REMEMBERED:
            self._records.popitem(last=False)

    def refusal(self, domain: Domain, key: str, now: float) -> Failure | None:
        """What to answer instead of trying again; None: try."""
        record = self._records.get((domain, key))
        if record is None or record.strikes < STRIKES or now >= record.until:
            return None
        said = (
            f"it is not tried again for {record.until - now:.0f} s: the last {record.strikes} times it did not survive "
            f"its compile; what was said then: {record.failure.message}"
        )
        return Failure("refused", said, record.failure.kernel)
