"""The backends that are ready: forkservers of the service itself, which make binaries of TTIR for all users.

TTIR is inert: to compile it executes nothing of whoever sent it. So what a backend makes may be given to everybody who
has the same TTIR, options, target and toolchain; its key is made of these by the daemon, and of nothing that anybody
claims. A backend is known by the digest of its toolchain's bytes; a worker of a user asks only if its own are the same.
"""

from compilepool.daemon.events import Domain


class Backends:
    """Backends with the digest that each told when it was ready, and its domain."""

    def __init__(self) -> None:
        self._ready: dict[int, tuple[str, Domain]] = {}

    def ready(self, forkserver: int, digest: str, domain: Domain) -> None:
        """This one can be asked."""
        self._ready[forkserver] = digest, domain

    def gone(self, forkserver: int) -> None:
        """It can't be asked any more; others are no backends."""
        self._ready.pop(forkserver, None)

    def digests(self) -> list[str]:
        """Of all that can be asked."""
        return sorted({digest for digest, _ in self._ready.values()})

    def domain(self, digest: str) -> Domain | None:
        """Of the backend with this toolchain."""
        return next((domain for known, domain in self._ready.values() if known == digest), None)
