"""Does what the scheduler decides: moves payloads, asks the store, sends messages, keeps the time.

Every peer's message becomes a scheduler event (`desk`), every action of the scheduler a message or a store access.
Nothing is decided here, and nothing that a client or forkserver sent is looked into beyond its header.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, assert_never

import anyio
import anyio.abc
import msgspec

from compilepool.daemon import actions as act, events as ev
from compilepool.daemon.access import access_of
from compilepool.daemon.administration import Asker, Order, administer, joined, pieces
from compilepool.daemon.backends import Backends
from compilepool.daemon.config import Config
from compilepool.daemon.credentials import PeerProcess
from compilepool.daemon.inflight import InFlight
from compilepool.daemon.jobs import SchedulerError
from compilepool.daemon.limiting import allowances_of, bounds_of
from compilepool.daemon.log import event as log_event
from compilepool.daemon.owner import Owner
from compilepool.daemon.pressure import Memory, read_memory
from compilepool.daemon.report import report
from compilepool.daemon.scheduler import Scheduler
from compilepool.daemon.settings import Settings
from compilepool.daemon.shelf import Shelf
from compilepool.daemon.store import Store
from compilepool.protocol import messages as m

if TYPE_CHECKING:
    from compilepool.daemon.peer import Peer

# Memory is looked at this often while anything happens, and while jobs wait for it.
MEMORY_SECONDS = 0.25
WAITING_FOR_MEMORY_SECONDS = 1.0


class Engine:
    """One daemon's state outside the scheduler: who is connected, what is in flight, what time it is."""

    def __init__(self, config: Config, store: Store, instance: str, version: str, tasks: anyio.abc.TaskGroup) -> None:
        self.config = config
        self.instance = instance
        self.scheduler = Scheduler(config.slots, config.timeout)
        self.on_drain: Callable[[], None] = lambda: None
        self.shelf = Shelf(store, tasks)
        self.inflight = InFlight()
        self.backends = Backends()
        self.cpu_seconds: dict[Owner, float] = {}
        self._version = version
        self._started = anyio.current_time()
        self._peers: dict[int, Peer] = {}
        self._given_up: dict[ev.Domain, list[PeerProcess]] = {}
        self._tasks = tasks
        self._memory = Memory(0, 0)
        self._memory_read = -MEMORY_SECONDS
        self._life = anyio.CancelScope()
        self._alarm = anyio.CancelScope()
        self.settle(config.settings)

    def __repr__(self) -> str:
        return f"<Engine [peers: {len(self._peers)} | {self.scheduler!r}]>"

    def settle(self, settings: Settings) -> None:
        """These settings hold from here on, for who is connected too; raises BadSettings, and then those before do."""
        access, allowances = access_of(settings), allowances_of(settings.limits)
        self.shelf.store.bounds = bounds_of(self.config.bounds, settings.limits)
        self.access, self.settings = access, settings
        self.feed(allowances)
        for peer in list(self._peers.values()):
            if peer.role == "backend" and access.refusal_of_role(peer.who, peer.owner.namespace, "backend"):
                # Others are asked when they ask; a backend would only be asked.
                self.forkserver_gone(peer, "the settings have no backend of this user", told=True)
                peer.post(m.Retire("the settings have no backend of this user"))
                peer.finish()

    async def run(self) -> None:
        """Keep time until the daemon is to exit: idle for long enough, or drained."""
        self._tasks.start_soon(self._keep_time)
        self._tasks.start_soon(self.shelf.recover)
        self._reconsider()
        with self._life:
            await anyio.sleep_forever()
        for peer in self._peers.values():
            peer.finish()

    def drain(self, *, now: bool = False) -> None:
        """Begin to stop: at the latest when `Config.drain` has passed, at once with `now`.

        Nobody new is let in: whoever comes finds the socket gone, or a successor at it, or is told to come again.
        """
        log_event("draining", now=now, running=self.scheduler.running, queued=self.scheduler.queued)
        if not self.scheduler.draining:
            self.on_drain()
            self._tasks.start_soon(self.shelf.close)
            for peer in self._peers.values():
                if peer.role == "client":
                    peer.post(m.Draining())
        self.feed(ev.Drain(now))
        self._life.deadline = min(self._life.deadline, anyio.current_time() + self.config.drain)
        self._reconsider()

    # ---- peers

    def joined(self, peer: "Peer") -> None:
        """A peer has greeted."""
        self._peers[peer.number] = peer
        toolchain = peer.domain.fingerprint[:12]
        log_event("joined", peer.owner, peer=peer.name, role=peer.role, pid=peer.process.pid, toolchain=toolchain)
        if peer.role != "client":
            self.feed(ev.Attached(peer.number, peer.domain))
        self._reconsider()

    def left(self, peer: "Peer", reason: str) -> None:
        """A peer that had joined is gone."""
        if self._peers.pop(peer.number, None) is None:
            return
        log_event("left", peer.owner, peer=peer.name, role=peer.role, reason=reason)
        # A forkserver asks too, for its workers.
        self.feed(ev.ClientGone(peer.number))
        if peer.role != "client":
            self.forkserver_gone(peer, reason)
        self._reconsider()

    def forkserver_gone(self, peer: "Peer", reason: str, *, told: bool = False) -> None:
        """It ended, or said that it will."""
        self.inflight.disown(peer.number)
        self.backends.gone(peer.number)
        self.feed(ev.ForkserverGone(peer.number, reason, told))

    # ---- decisions, and doing them

    def feed(self, event: ev.Event) -> None:
        """Let the scheduler decide on an event, and do what it says."""
        now = anyio.current_time()
        actions = self._look_at_memory(now) + self.scheduler.handle(event, now)
        for action in actions:
            self._perform(action)
        self._set_alarm(now)
        if self.scheduler.draining:
            self._reconsider()

    def _perform(self, action: act.Action) -> None:  # noqa: C901 - one line for each action
        match action:
            case act.LookUp(job, request):
                payload = self.inflight.take(job, request)
                self._tasks.start_soon(self._look_up, job, payload.keys, request.client)
            case act.Run(job, forkserver, seconds):
                self._run(job, forkserver, seconds)
            case act.Assist(job, forkserver):
                self._order(forkserver, lambda told: m.Assist(told), job)
            case act.Kill(job, forkserver):
                self._order(forkserver, lambda told: m.Kill(told), job)
            case act.Answer(request, job, origin):
                self._answer(request, job, origin)
            case act.Fail(request, failure):
                self._is_lean(request)
                self._post(request.client, m.Failed(request.id, failure))
            case act.AskForForkserver(client):
                log_event("asked-for-forkserver", self._peers[client].owner, peer=self._peers[client].name)
                self._post(client, m.StartForkserver())
            case act.Adopt(forkserver):
                self._adopt(forkserver)
            case act.Ping(forkserver):
                self._post(forkserver, m.Ping())
            case act.Retire(forkserver, reason):
                self._retire(forkserver, reason)
            case act.Forget(job):
                self.inflight.forget(job)
            case _:
                assert_never(action)

    def _adopt(self, forkserver: int) -> None:
        peer = self._peers[forkserver]
        peer.adopted = True
        given_up = self._given_up.pop(peer.domain, [])
        replaces = [process.pid for process in given_up if process.alive]
        for process in given_up:
            process.close()
        peer.post(m.Adopt(replaces, list(self.settings.sandbox.require)))

    def _retire(self, forkserver: int, reason: str) -> None:
        self.inflight.disown(forkserver)
        if peer := self._peers.get(forkserver):
            log_event("retired", peer.owner, peer=peer.name, pid=peer.process.pid, reason=reason)
            self.backends.gone(peer.number)
            if peer.adopted:
                self._give_up(peer)
            peer.post(m.Retire(reason))
            peer.finish()

    def _give_up(self, peer: "Peer") -> None:
        """Its domain's next forkserver ends it, if it is only stopped; what has ended is forgotten."""
        for domain, given_up in list(self._given_up.items()):
            for process in [process for process in given_up if not process.alive]:
                process.close()
                given_up.remove(process)
            if not given_up:
                del self._given_up[domain]
        self._given_up.setdefault(peer.domain, []).append(peer.give_process())

    def _run(self, job: int, forkserver: int, seconds: float) -> None:
        payload = self.inflight.given(job, forkserver)
        if payload.task is None:
            raise SchedulerError(f"job {job} is a probe, and probes don't run")
        limits = m.Limits(seconds, self.config.memory)
        task, place, backends = payload.task, payload.cache_dir, self.backends.digests()
        self._order(forkserver, lambda told: m.Spawn(told, task, place, limits, backends), job, (payload.body,))

    def _order(
        self, forkserver: int, make: Callable[[int], m.AnyMessage], job: int, segments: tuple[bytes, ...] = ()
    ) -> None:
        """Send what is about a job, by the number that this forkserver is told."""
        if peer := self._peers.get(forkserver):
            peer.post(make(peer.disguise.told(job)), segments)

    def _answer(self, request: ev.RequestId, job: int, origin: m.Origin) -> None:
        if self.inflight[job].task is None:
            self._post(request.client, m.Prepared(request.id))
        else:
            stored, lean = self.inflight.results[job], self._is_lean(request) and origin == "store"
            segments = stored.segments[:1] if lean else stored.segments
            self._post(request.client, m.Compiled(request.id, origin, stored.contents, lean), segments)

    def _is_lean(self, request: ev.RequestId) -> bool:
        """Whether it wants no files; asked once, when it ends."""
        peer = self._peers.get(request.client)
        if peer is None or request.id not in peer.lean:
            return False
        peer.lean.discard(request.id)
        return True

    def _post(self, peer: int, message: m.AnyMessage, segments: tuple[bytes, ...] = ()) -> None:
        if receiver := self._peers.get(peer):
            receiver.post(message, segments)

    # ---- store

    async def _look_up(self, job: int, keys: tuple[str, ...], client: int) -> None:
        stored = await self.shelf.get(keys, client)
        if stored is not None and job in self.inflight:
            self.inflight.results[job] = stored
        self.feed(ev.LookedUp(job, stored is not None))

    async def administer(self, peer: "Peer", message: Order, segments: tuple[bytes, ...], size: int) -> None:
        """Do what is asked of the store, and answer; one order of an owner at a time, piece by piece."""
        asker = Asker(peer.owner, peer.sees is None, self.settings.store.salt)
        peer.usage.hold(size)
        try:
            async with peer.usage.order:
                answers = []
                for piece in pieces(message):
                    do = partial(administer, asker=asker, order=piece, segments=segments)
                    answers.append(await self.shelf.change(do))
        finally:
            peer.usage.hold(-size)
        peer.post(*joined(answers))

    # ---- time

    async def _keep_time(self) -> None:
        while True:
            with anyio.CancelScope(deadline=self._alarm.deadline) as self._alarm:
                await anyio.sleep_forever()
            self.feed(ev.Tick())

    def _set_alarm(self, now: float) -> None:
        deadline = self.scheduler.deadline()
        self._alarm.deadline = float("inf") if deadline is None else deadline
        if self.scheduler.held_back:
            self._alarm.deadline = min(self._alarm.deadline, now + WAITING_FOR_MEMORY_SECONDS)

    def _look_at_memory(self, now: float) -> list[act.Action]:
        """Tell the scheduler what the host has room for, if the last look was a while ago."""
        if now - self._memory_read < MEMORY_SECONDS:
            return []
        self._memory, self._memory_read = read_memory(), now
        was_held_back = self.scheduler.held_back
        actions = self.scheduler.handle(ev.Memory(self._memory.room), now)
        if self.scheduler.held_back != was_held_back:
            log_event("short-of-memory" if self.scheduler.held_back else "enough-memory", memory=self._memory)
        return actions

    def _reconsider(self) -> None:
        """Decide anew when to exit: drained now, idle later, or not at all."""
        if self.scheduler.draining:
            if self.scheduler.idle:
                self._life.cancel()
            return
        clients = any(peer.role == "client" for peer in self._peers.values())
        waits = clients or not self.scheduler.idle or self.config.idle_exit is None
        self._life.deadline = float("inf") if waits else anyio.current_time() + (self.config.idle_exit or 0.0)

    # ---- status

    def report(self, peer: "Peer") -> m.StatusReport:
        """The state of its parts, as far as this peer may see it."""
        own = report(self, peer.sees, self._peers.values(), self._memory)
        uptime = anyio.current_time() - self._started
        return msgspec.structs.replace(own, version=self._version, uptime=uptime)
