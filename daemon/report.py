"""What the daemon says of itself."""

import os
import resource
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from compilepool.daemon.config import Config
from compilepool.daemon.pressure import Memory
from compilepool.daemon.scheduler import Scheduler
from compilepool.daemon.shelf import Shelf
from compilepool.protocol.messages import StatusReport

if TYPE_CHECKING:
    from compilepool.daemon.server import Peer


def report(
    config: Config,
    scheduler: Scheduler,
    shelf: Shelf,
    memory: Memory,
    peers: "Collection[Peer]",
    *,
    version: str,
    instance: str,
    uptime: float,
    cpu_seconds: float,
) -> StatusReport:
    """The state of its parts, at this moment."""
    store = shelf.store
    objects, size = store.total
    return StatusReport(
        version=version,
        instance=instance,
        pid=os.getpid(),
        uptime=uptime,
        socket=str(config.socket),
        store=str(config.store),
        store_bytes=size,
        store_objects=objects,
        store_limit=store.bounds.size,
        store_trouble=store.trouble,
        draining=scheduler.draining,
        slots=config.slots,
        running=scheduler.running,
        queued=scheduler.queued,
        waiting_for_forkserver=scheduler.waiting,
        held_back=f"the host is short of memory: {memory}" if scheduler.held_back else "",
        memory_available=memory.available,
        clients=sum(peer.role == "client" for peer in peers),
        forkservers=[f"pid {p.pid}, toolchain {p.domain.fingerprint[:12]}" for p in peers if p.role == "forkserver"],
        counters=dict(scheduler.counters) | shelf.counters,
        cpu_seconds=cpu_seconds,
        rss=_rss(),
    )


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
