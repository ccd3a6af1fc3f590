"""What the daemon says of itself: to administrators everything, to a user what is the user's own."""

import os
import resource
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from compilepool.daemon.owner import Owner
from compilepool.daemon.pressure import Memory
from compilepool.protocol.messages import StatusReport, UserReport

if TYPE_CHECKING:
    from compilepool.daemon.engine import Engine
    from compilepool.daemon.peer import Peer


def report(engine: "Engine", sees: Owner | None, peers: "Collection[Peer]", memory: Memory) -> StatusReport:
    """The state at this moment of what `sees` owns (None: of all); version and uptime are left to who asks."""
    scheduler, store, config = engine.scheduler, engine.shelf.store, engine.config
    visible = [peer for peer in peers if sees is None or peer.owner == sees]
    users = list(_users(engine, sees, visible))
    mine = sees is not None
    objects, size = store.total if sees is None else store.total_of(str(sees))
    counters = scheduler.counters(sees)
    return StatusReport(
        version="",
        instance=engine.instance,
        pid=os.getpid(),
        uptime=0.0,
        socket=str(config.socket),
        store=str(config.store),
        store_bytes=size,
        store_objects=objects,
        store_limit=(store.bounds.of(str(sees)) if mine else None) or store.bounds.size,
        store_trouble=store.trouble,
        draining=scheduler.draining,
        slots=config.slots,
        running=sum(user.running for user in users) if mine else scheduler.running,
        queued=sum(user.queued for user in users) if mine else scheduler.queued,
        waiting_for_forkserver=sum(user.waiting_for_forkserver for user in users) if mine else scheduler.waiting,
        held_back=f"the host is short of memory: {memory}" if scheduler.held_back else "",
        memory_available=memory.available,
        clients=sum(peer.role == "client" for peer in visible),
        forkservers=[_described(peer) for peer in visible if peer.role == "forkserver"],
        counters=dict(counters) | ({} if mine else engine.shelf.counters),
        cpu_seconds=engine.cpu_seconds.get(sees, 0.0) if sees is not None else sum(engine.cpu_seconds.values()),
        rss=_rss(),
        administrator=not mine,
        users=users,
        # What a backend is and has is everybody's business; where it runs is not.
        backends=[_described(peer) for peer in peers if peer.role == "backend"],
    )


def _users(engine: "Engine", sees: Owner | None, peers: "list[Peer]") -> Iterator[UserReport]:
    connections = Counter(peer.owner for peer in peers)
    owners = [sees] if sees is not None else sorted({*connections, *engine.scheduler.owners()})
    for owner in owners:
        account = engine.scheduler.account(owner)
        objects, size = engine.shelf.store.total_of(str(owner))
        yield UserReport(
            user=str(owner),
            connections=connections[owner],
            running=account.running,
            queued=account.queued,
            waiting_for_forkserver=account.waiting,
            slot_seconds=account.slot_seconds,
            cpu_seconds=engine.cpu_seconds.get(owner, 0.0),
            most=account.most,
            requests=engine.scheduler.counters(owner)["requests"],
            store_bytes=size,
            store_objects=objects,
        )


def _described(peer: "Peer") -> str:
    sandbox = f", sandbox: {' and '.join(peer.sandbox)}" if peer.sandbox else ", no sandbox"
    return f"pid {peer.process.pid}, toolchain {peer.domain.fingerprint[:12]}{sandbox}"


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
