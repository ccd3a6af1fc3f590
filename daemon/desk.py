"""Where messages arrive: each becomes a scheduler event, an answer, or the end of who may not send it.

A client asks; a forkserver tells what became of its jobs, and asks for its workers (`Lower`). What somebody may see or
do here is decided by `Peer.sees`, and by nothing that it sends.
"""

from collections.abc import Awaitable
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from compilepool.daemon import events as ev
from compilepool.daemon.administration import Order
from compilepool.daemon.estimate import Estimator
from compilepool.daemon.identity import digest_of, identities_of, identity_of_lowering, key_of
from compilepool.daemon.log import event as log_event, events_after
from compilepool.daemon.objects import Stored
from compilepool.daemon.owner import SHARED
from compilepool.daemon.payload import NAME_CHARACTERS, Payload
from compilepool.daemon.peer import Peer
from compilepool.protocol import messages as m
from compilepool.protocol.contents import DamagedContents, verify
from compilepool.protocol.errors import Failure, ProtocolError

if TYPE_CHECKING:
    from compilepool.daemon.engine import Engine


# Of what a peer says went wrong: kept where others read it.
REASON_CHARACTERS, MESSAGE_CHARACTERS = 400, 20 << 10


class Desk:
    """Takes the messages of all peers that have greeted."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._estimator = Estimator()

    def received(
        self, peer: Peer, message: m.AnyMessage, segments: tuple[bytes, ...], size: int
    ) -> Awaitable[None] | None:
        """One message, of so many bytes; ProtocolError if it makes no sense now.

        What the store is asked is to be awaited before more is read from the peer.
        """
        if isinstance(message, Order) and peer.role == "client":
            return self._engine.administer(peer, message, segments, size)
        if peer.role == "client":
            self._from_client(peer, message, segments, size)
        else:
            self._from_forkserver(peer, message, segments, size)
        return None

    # ---- clients

    def _from_client(self, peer: Peer, message: m.AnyMessage, segments: tuple[bytes, ...], size: int) -> None:
        engine = self._engine
        match message:
            case m.Compile():
                self._compile(peer, message, segments[0], size)
            case m.Execute(request, call, priority, timeout):
                payload = Payload(peer.owner, call.name, call, segments[0])
                self._submit(peer, peer.domain, request, payload, size, priority, timeout)
            case m.Prepare(request):
                self._submit(peer, peer.domain, request, Payload(peer.owner, "probe"), size)
            case m.Promote(request):
                engine.feed(ev.Promoted(ev.RequestId(peer.number, request)))
            case m.Cancel(request):
                self._cancel(peer, request)
            case m.StartFailed(reason):
                log_event("start-failed", peer.owner, peer=peer.name, reason=reason)
                engine.feed(ev.StartFailed(peer.number, reason[:REASON_CHARACTERS]))
            case m.GetStatus(request):
                peer.post(m.Status(request, engine.report(peer)))
            case m.GetEvents(request, after):
                peer.post(m.Events(request, events_after(peer.sees, after)))
            case m.Stop(request, now):
                self._stop(peer, request, now=now)
            case _:
                raise ProtocolError(f"{type(message).__name__} is not expected here")

    def _compile(self, peer: Peer, message: m.Compile, source: bytes, size: int) -> None:
        recipe = message.recipe
        # Of a function, what Triton makes of it: expected times are kept by this.
        digest = recipe.hash if isinstance(recipe, m.Jit) and not recipe.ttir else digest_of(source)
        identities = identities_of(peer.domain, message, digest)
        salt = self._engine.settings.store.salt
        keys = tuple(key_of(peer.owner, identity, salt) for identity in identities)
        identity = identities[0] if identities else None
        payload = Payload(peer.owner, recipe.name, recipe, source, identity, keys, digest, message.cache_dir)
        if message.without_files:
            peer.lean.add(message.id)
        self._submit(peer, peer.domain, message.id, payload, size, message.priority, message.timeout)

    def _cancel(self, peer: Peer, request: int) -> None:
        peer.lean.discard(request)
        self._engine.feed(ev.Cancelled(ev.RequestId(peer.number, request)))

    def _stop(self, peer: Peer, request: int, *, now: bool) -> None:
        if peer.sees is not None:
            peer.post(
                m.Failed(request, Failure("refused", "only an administrator may stop a daemon that serves others"))
            )
            return
        peer.post(m.Stopping(request))
        self._engine.drain(now=now)

    def _submit(
        self,
        peer: Peer,
        domain: ev.Domain,
        number: int,
        payload: Payload,
        size: int,
        priority: m.Priority = "foreground",
        timeout: float | None = None,
        behalf: int | None = None,
    ) -> None:
        engine, request = self._engine, ev.RequestId(peer.number, number)
        if engine.scheduler.knows(request):
            raise ProtocolError(f"request {number} is in flight already; ids are used once")
        if not peer.domain.fingerprint:
            raise ProtocolError("a client that greeted without a toolchain can't have kernels compiled")
        if refusal := payload.refusal():
            peer.lean.discard(number)
            peer.post(m.Failed(number, Failure("refused", refusal, payload.name[:NAME_CHARACTERS])))
            return
        probe = payload.task is None
        # A call is shared with nobody: no other request can have its key.
        key, *wider = payload.keys or ("probe" if probe else f"call {request}",)
        submitted = ev.Submitted(
            request,
            domain,
            key,
            payload.name,
            priority,
            self._estimator.expected(domain.owner, payload.digest, payload.body),
            size=size,
            timeout=timeout,
            wider="".join(wider),
            probe=probe,
            behalf=behalf,
        )
        engine.inflight.arrived[request] = replace(payload, request=peer.request_name(number))
        engine.feed(submitted)
        engine.inflight.arrived.pop(request, None)

    # ---- forkservers

    def _from_forkserver(self, peer: Peer, message: m.AnyMessage, segments: tuple[bytes, ...], size: int) -> None:
        engine = self._engine
        match message:
            case m.Ready():
                self._ready(peer, message)
            case m.Unfit(reason):
                log_event("unfit", peer.owner, peer=peer.name, reason=reason)
                engine.forkserver_gone(peer, reason[:REASON_CHARACTERS], told=True)
            case m.Pong():
                engine.feed(ev.Heard(peer.number))
            case m.Progress(told, unclaimed):
                job = peer.disguise.job(told)
                engine.inflight.run_by(peer.number, job)
                engine.feed(ev.Progress(job, unclaimed))
            case m.Assisted(told):
                engine.feed(ev.Assisted(peer.disguise.job(told), peer.number))
            case m.Lower():
                self._lower(peer, message, segments[0], size)
            case m.Cancel(request):
                self._cancel(peer, request)
            case m.JobDone():
                self._job_done(peer, message, segments)
            case m.JobFailed():
                self._job_failed(peer, message)
            case _:
                raise ProtocolError(f"{type(message).__name__} is not expected here")

    def _ready(self, peer: Peer, message: m.Ready) -> None:
        lacking = [name for name in self._engine.settings.sandbox.require if not _has(message.sandbox, name)]
        if lacking:
            reason = f"its workers would have no {' and no '.join(lacking)}, which the daemon's configuration requires"
            self._engine.forkserver_gone(peer, reason, told=True)
            peer.post(m.Retire(reason))
            peer.finish()
            return
        sandbox, seconds = ", ".join(message.sandbox) or "none", round(message.seconds, 3)
        log_event("ready", peer.owner, peer=peer.name, seconds=seconds, sandbox=sandbox)
        peer.sandbox = message.sandbox
        if peer.role == "backend" and peer.adopted:
            self._engine.backends.ready(peer.number, message.backend, peer.domain)
        self._engine.feed(ev.Ready(peer.number))

    def _lower(self, peer: Peer, message: m.Lower, ttir: bytes, size: int) -> None:
        """A worker asks for a part of its job: what a backend makes of its TTIR."""
        number = peer.disguise.job(message.job)
        job = self._engine.inflight.run_by(peer.number, number)
        domain = self._engine.backends.domain(message.backend)
        if domain is None or peer.role == "backend":
            failure = Failure("unavailable", "no backend of this toolchain is attached", job.name)
            peer.post(m.Failed(message.id, failure))
            return
        identity = identity_of_lowering(message, ttir)
        key = key_of(SHARED, identity, self._engine.settings.store.salt)
        payload = Payload(SHARED, message.task.name, message.task, ttir, identity, (key,), identity.source)
        self._submit(peer, domain, message.id, payload, size, behalf=number)

    def _job_done(self, peer: Peer, message: m.JobDone, segments: tuple[bytes, ...]) -> None:
        engine, job = self._engine, peer.disguise.job(message.job)
        payload = engine.inflight.run_by(peer.number, job)
        try:
            verify(message.contents, segments)
        except DamagedContents as exc:
            raise ProtocolError(f"the result of job {message.job} is damaged: {exc}") from exc
        engine.inflight.ended(job)
        cost = message.contents.cost
        self._account(payload, cost)
        log_event("compiled", payload.owner, request=payload.request, kernel=payload.name,
                  units=len(message.contents.units), wall=round(cost.wall, 3), cpu=round(cost.cpu, 3),
                  peak_rss=cost.peak_rss)  # fmt: skip
        stored = engine.inflight.results[job] = Stored(message.contents, segments)
        if payload.identity is not None:
            self._estimator.learn(payload.owner, payload.digest, cost.cpu)
            engine.shelf.put(payload.keys[0], str(payload.owner), payload.identity, stored)
        engine.feed(ev.Succeeded(job, len(message.contents.units)))

    def _job_failed(self, peer: Peer, message: m.JobFailed) -> None:
        job = peer.disguise.job(message.job)
        payload = self._engine.inflight.run_by(peer.number, job)
        self._engine.inflight.ended(job)
        self._account(payload, message.cost)
        log_event("failed", payload.owner, request=payload.request, kernel=payload.name,
                  kind=message.failure.kind, reason=message.failure.message)  # fmt: skip
        cut = message.failure.message[-MESSAGE_CHARACTERS:]
        failure = msgspec.structs.replace(message.failure, message=cut, kernel=payload.name)
        self._engine.feed(ev.JobFailed(job, failure))

    def _account(self, payload: Payload, cost: m.Cost) -> None:
        spent = self._engine.cpu_seconds
        spent[payload.owner] = spent.get(payload.owner, 0.0) + cost.cpu


def _has(sandbox: list[str], wanted: str) -> bool:
    """Whether 'landlock 7' is among it, for 'landlock', or for 'landlock 6'."""
    name, _, least = wanted.partition(" ")
    for told in sandbox:
        primitive, _, version = told.partition(" ")
        if primitive == name and (not least or (version.isdigit() and int(version) >= int(least))):
            return True
    return False
