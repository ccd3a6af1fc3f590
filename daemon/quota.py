"""How much of the daemon's memory and descriptors one owner's connections may hold together.

A client by itself is bounded elsewhere (`peer`, `requests`); an owner that opens a thousand connections is, here.
"""

from dataclasses import dataclass, field

import anyio

from compilepool.daemon.owner import Owner
from compilepool.protocol.errors import Refused

# A rank has one or two; the daemon has tens of thousands of descriptors.
CONNECTIONS = 4096
# What has arrived and is no whole message yet, and what waits to be sent: a few of the largest frames.
BYTES = 1 << 30


@dataclass(slots=True)
class Usage:
    """Of one owner."""

    connections: int = 0
    held: int = 0
    # Of all its connections one at a time is listened to: others get in between.
    turn: anyio.Lock = field(default_factory=anyio.Lock)
    # And one of them at a time has something done in the store.
    order: anyio.Lock = field(default_factory=anyio.Lock)

    def hold(self, change: int) -> None:
        """So many bytes more (or fewer) are held; raises Refused when it is too much."""
        self.held += change
        if change > 0 and self.held > BYTES:
            raise Refused(
                f"your connections make the daemon hold {self.held >> 20} MiB; at most {BYTES >> 20} are taken"
            )


class Quotas:
    """The usage of every owner that is connected."""

    def __init__(self) -> None:
        self._usages: dict[Owner, Usage] = {}

    def connected(self, owner: Owner) -> Usage:
        """One more connection; the owner's usage."""
        usage = self._usages.setdefault(owner, Usage())
        usage.connections += 1
        return usage

    def disconnected(self, owner: Owner) -> None:
        """One fewer."""
        usage = self._usages[owner]
        usage.connections -= 1
        if not usage.connections:
            del self._usages[owner]
