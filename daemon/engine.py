"""Does what the scheduler decides: moves payloads, asks the store, sends messages, keeps the time.

Every peer's message becomes a scheduler event, every action of the scheduler a message or a store access. Nothing is
decided here, and nothing that a client or forkserver sent is looked into beyond its header.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, assert_never

import anyio
import anyio.abc

from compilepool.daemon import actions as act, events as ev
from compilepool.daemon.administration import Order, administer
from compilepool.daemon.config import Config
from compilepool.daemon.estimate import Estimator
from compilepool.daemon.identity import digest_of, identities_of, key_of
from compilepool.daemon.jobs import SchedulerError
from compilepool.daemon.log import event as log_event, events_after
from compilepool.daemon.objects import Stored
from compilepool.daemon.payload import NAME_CHARACTERS, Payload
from compilepool.daemon.pressure import Memory, read_memory
from compilepool.daemon.report import report
from compilepool.daemon.scheduler import Scheduler
from compilepool.daemon.shelf import Shelf
from compilepool.daemon.store import Store
from compilepool.protocol import messages as m
from compilepool.protocol.contents import DamagedContents, verify
from compilepool.protocol.errors import Failure, ProtocolError

if TYPE_CHECKING:
    from compilepool.daemon.server import Peer

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
        self._shelf = Shelf(store, tasks)
        self._version = version
        self._started = anyio.current_time()
        self._estimator = Estimator()
        self._peers: dict[int, Peer] = {}
        self._arrived: dict[ev.RequestId, Payload] = {}
        self._payloads: dict[int, Payload] = {}
        self._results: dict[int, Stored] = {}
        self._forkserver_of: dict[int, int] = {}
        self._given_up: dict[ev.Domain, list[int]] = {}
        self._cpu_seconds = 0.0
        self._tasks = tasks
        self._memory = Memory(0, 0)
        self._memory_read = -MEMORY_SECONDS
        self._life = anyio.CancelScope()
        self._alarm = anyio.CancelScope()

    def __repr__(self) -> str:
        return f"<Engine [peers: {len(self._peers)} | {self.scheduler!r}]>"

    async def run(self) -> None:
        """Keep time until the daemon is to exit: idle for long enough, or drained."""
        self._tasks.start_soon(self._keep_time)
        self._tasks.start_soon(self._shelf.recover)
        self._reconsider()
        with self._life:
            await anyio.sleep_forever()
        for peer in self._peers.values():
            peer.finish()

    def drain(self, *, now: bool = False) -> None:
        """Begin to stop: at the latest when `Config.drain` has passed, at once with `now`.

        Nobody new is let in: whoever comes finds the socket gone, or a successor at it.
        """
        log_event("draining", now=now, running=self.scheduler.running, queued=self.scheduler.queued)
        if not self.scheduler.draining:
            self.on_drain()
            self._tasks.start_soon(self._shelf.close)
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
        log_event("joined", peer=peer.number, role=peer.role, pid=peer.pid, toolchain=peer.domain.fingerprint[:12])
        if peer.role == "forkserver":
            self.feed(ev.Attached(peer.number, peer.domain))
        self._reconsider()

    def left(self, peer: "Peer", reason: str) -> None:
        """A peer that had joined is gone."""
        if self._peers.pop(peer.number, None) is None:
            return
        log_event("left", peer=peer.number, role=peer.role, reason=reason)
        if peer.role == "forkserver":
            self._forkserver_gone(peer, reason)
        else:
            self.feed(ev.ClientGone(peer.number))
        self._reconsider()

    def _forkserver_gone(self, peer: "Peer", reason: str, *, told: bool = False) -> None:
        """It ended, or said that it will."""
        self._disown(peer.number)
        self.feed(ev.ForkserverGone(peer.number, reason, told))

    def _disown(self, forkserver: int) -> None:
        """Nothing that it may still send is an answer."""
        self._forkserver_of = {job: number for job, number in self._forkserver_of.items() if number != forkserver}

    def received(self, peer: "Peer", message: m.AnyMessage, segments: tuple[bytes, ...]) -> None:
        """One message of a peer that has greeted; ProtocolError if it makes no sense now."""
        if peer.role == "forkserver":
            self._from_forkserver(peer, message, segments)
        else:
            self._from_client(peer, message, segments)

    def _from_client(  # noqa: C901 - one line for each message
        self, peer: "Peer", message: m.AnyMessage, segments: tuple[bytes, ...]
    ) -> None:
        match message:
            case m.Compile():
                self._compile(peer, message, segments[0])
            case m.Execute(request, call, priority, timeout):
                self._submit(peer, request, Payload(call.name, call, segments[0]), priority, timeout)
            case m.Prepare(request):
                self._submit(peer, request, Payload("probe"), "foreground")
            case m.Promote(request):
                self.feed(ev.Promoted(ev.RequestId(peer.number, request)))
            case m.Cancel(request):
                peer.lean.discard(request)
                self.feed(ev.Cancelled(ev.RequestId(peer.number, request)))
            case m.StartFailed(reason):
                log_event("start-failed", peer=peer.number, reason=reason)
                self.feed(ev.StartFailed(peer.number, reason))
            case m.GetStatus(request):
                peer.post(m.Status(request, self._report()))
            case m.ListObjects() | m.ReadObject() | m.AddObject() | m.ManageObjects():
                self._tasks.start_soon(self._administer, peer, message, segments)
            case m.GetEvents(request, after):
                peer.post(m.Events(request, events_after(after)))
            case m.Stop(request, now):
                peer.post(m.Stopping(request))
                self.drain(now=now)
            case _:
                raise ProtocolError(f"{type(message).__name__} is not expected here")

    def _from_forkserver(self, peer: "Peer", message: m.AnyMessage, segments: tuple[bytes, ...]) -> None:
        match message:
            case m.Ready(seconds):
                log_event("ready", peer=peer.number, seconds=round(seconds, 3))
                self.feed(ev.Ready(peer.number))
            case m.Unfit(reason):
                log_event("unfit", peer=peer.number, reason=reason)
                self._forkserver_gone(peer, reason, told=True)
            case m.Pong():
                self.feed(ev.Heard(peer.number))
            case m.Progress(job, unclaimed):
                self._running(peer, job)
                self.feed(ev.Progress(job, unclaimed))
            case m.Assisted(job):
                self.feed(ev.Assisted(job, peer.number))
            case m.JobDone():
                self._job_done(peer, message, segments)
            case m.JobFailed():
                self._job_failed(peer, message)
            case _:
                raise ProtocolError(f"{type(message).__name__} is not expected here")

    def _compile(self, peer: "Peer", message: m.Compile, source: bytes) -> None:
        recipe, digest = message.recipe, digest_of(source)
        identities = identities_of(peer.domain, message, digest)
        keys = tuple(key_of(peer.domain.uid, identity) for identity in identities)
        identity = identities[0] if identities else None
        payload = Payload(recipe.name, recipe, source, identity, keys, digest, message.cache_dir)
        if message.without_files:
            peer.lean.add(message.id)
        self._submit(peer, message.id, payload, message.priority, message.timeout)

    def _submit(
        self, peer: "Peer", number: int, payload: Payload, priority: m.Priority, timeout: float | None = None
    ) -> None:
        request = ev.RequestId(peer.number, number)
        if self.scheduler.knows(request):
            raise ProtocolError(f"request {number} is in flight already; ids are used once")
        if not peer.domain.fingerprint:
            raise ProtocolError("a client that greeted without a toolchain can't have kernels compiled")
        if too_large := payload.too_large():
            peer.post(m.Failed(number, Failure("refused", too_large, payload.name[:NAME_CHARACTERS])))
            return
        probe = payload.task is None
        # A call is shared with nobody: no other request can have its key.
        key, *wider = payload.keys or ("probe" if probe else f"call {request}",)
        expected = self._estimator.expected(payload.digest, payload.body)
        submitted = ev.Submitted(
            request,
            peer.domain,
            key,
            payload.name,
            priority,
            expected,
            size=len(payload.body),
            timeout=timeout,
            wider="".join(wider),
            probe=probe,
        )
        self._arrived[request] = payload
        self.feed(submitted)
        self._arrived.pop(request, None)

    def _job_done(self, peer: "Peer", message: m.JobDone, segments: tuple[bytes, ...]) -> None:
        payload = self._running(peer, message.job)
        try:
            verify(message.contents, segments)
        except DamagedContents as exc:
            raise ProtocolError(f"the result of job {message.job} is damaged: {exc}") from exc
        cost = message.contents.cost
        self._cpu_seconds += cost.cpu
        log_event("compiled", job=message.job, kernel=payload.name, units=len(message.contents.units),
                  wall=round(cost.wall, 3), cpu=round(cost.cpu, 3), peak_rss=cost.peak_rss)  # fmt: skip
        stored = self._results[message.job] = Stored(message.contents, segments)
        if payload.identity is not None:
            self._estimator.learn(payload.digest, cost.cpu)
            self._shelf.put(payload.keys[0], peer.domain.uid, payload.identity, stored)
        self.feed(ev.Succeeded(message.job, len(message.contents.units)))

    def _job_failed(self, peer: "Peer", message: m.JobFailed) -> None:
        payload = self._running(peer, message.job)
        self._cpu_seconds += message.cost.cpu
        log_event("failed", job=message.job, kernel=payload.name, kind=message.failure.kind,
                  reason=message.failure.message)  # fmt: skip
        self.feed(ev.JobFailed(message.job, message.failure))

    def _running(self, peer: "Peer", job: int) -> Payload:
        if self._forkserver_of.get(job) != peer.number:
            raise ProtocolError(f"job {job} was not given to this forkserver")
        return self._payloads[job]

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
                payload = self._payloads[job] = self._arrived.pop(request)
                self._tasks.start_soon(self._look_up, job, payload.keys, request.client)
            case act.Run(job, forkserver, seconds):
                self._run(job, forkserver, seconds)
            case act.Assist(job, forkserver):
                self._post(forkserver, m.Assist(job))
            case act.Kill(job, forkserver):
                self._post(forkserver, m.Kill(job))
            case act.Answer(request, job, origin):
                self._answer(request, job, origin)
            case act.Fail(request, failure):
                self._is_lean(request)
                self._post(request.client, m.Failed(request.id, failure))
            case act.AskForForkserver(client):
                log_event("asked-for-forkserver", peer=client)
                self._post(client, m.StartForkserver())
            case act.Adopt(forkserver):
                self._adopt(forkserver)
            case act.Ping(forkserver):
                self._post(forkserver, m.Ping())
            case act.Retire(forkserver, reason):
                self._retire(forkserver, reason)
            case act.Forget(job):
                for kept in (self._payloads, self._results, self._forkserver_of):
                    kept.pop(job, None)
            case _:
                assert_never(action)

    def _adopt(self, forkserver: int) -> None:
        peer = self._peers[forkserver]
        peer.adopted = True
        peer.post(m.Adopt(self._given_up.pop(peer.domain, [])))

    def _retire(self, forkserver: int, reason: str) -> None:
        self._disown(forkserver)
        if peer := self._peers.get(forkserver):
            log_event("retired", peer=forkserver, pid=peer.pid, reason=reason)
            if peer.adopted:
                self._given_up.setdefault(peer.domain, []).append(peer.pid)
            peer.post(m.Retire(reason))
            peer.finish()

    def _run(self, job: int, forkserver: int, seconds: float) -> None:
        payload = self._payloads[job]
        if payload.task is None:
            raise SchedulerError(f"job {job} is a probe, and probes don't run")
        self._forkserver_of[job] = forkserver
        limits = m.Limits(seconds, self.config.memory)
        self._post(forkserver, m.Spawn(job, payload.task, payload.cache_dir, limits), (payload.body,))

    def _answer(self, request: ev.RequestId, job: int, origin: m.Origin) -> None:
        if self._payloads[job].task is None:
            self._post(request.client, m.Prepared(request.id))
        else:
            stored, lean = self._results[job], self._is_lean(request) and origin == "store"
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
        stored = await self._shelf.get(keys, client)
        if stored is not None and job in self._payloads:
            self._results[job] = stored
        self.feed(ev.LookedUp(job, stored is not None))

    async def _administer(self, peer: "Peer", message: Order, segments: tuple[bytes, ...]) -> None:
        peer.post(*await self._shelf.change(lambda store: administer(store, peer.domain.uid, message, segments)))

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

    def _report(self) -> m.StatusReport:
        return report(
            self.config,
            self.scheduler,
            self._shelf,
            self._memory,
            self._peers.values(),
            version=self._version,
            instance=self.instance,
            uptime=anyio.current_time() - self._started,
            cpu_seconds=self._cpu_seconds,
        )
