"""The engine with peers that only note what they are sent, and a store that waits to be let on."""

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from compilepool.daemon.bounds import Bounds
from compilepool.daemon.config import Config
from compilepool.daemon.credentials import Credentials, PeerProcess
from compilepool.daemon.desk import Desk
from compilepool.daemon.engine import Engine
from compilepool.daemon.estimate import from_text
from compilepool.daemon.events import Domain
from compilepool.daemon.objects import Stored
from compilepool.daemon.owner import HOST, Owner
from compilepool.daemon.store import Store
from compilepool.protocol import messages as m
from compilepool.protocol.contents import checksum
from compilepool.protocol.errors import Failure, ProtocolError

DOMAIN = Domain(Owner(HOST, 1000), "fingerprint")
RECIPE = m.Recipe("kernel", {}, {})
CONTENTS = m.Contents([], [], [checksum(b"pickle")], m.Cost(1.0, 1.0, 1))


class SlowStore(Store):
    """Writes only when it is let."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.open()
        self.may_write = threading.Event()

    def put(self, key: str, owner: str, identity: m.Identity, stored: Stored) -> bool:
        self.may_write.wait(timeout=30)
        return super().put(key, owner, identity, stored)


def received(engine: Any, peer: Any, message: m.AnyMessage, segments: tuple[bytes, ...] = ()) -> None:
    engine.desk.received(peer, message, segments, 0)


class Undisguised:
    """Jobs are called by their numbers."""

    def told(self, job: int) -> int:
        return job

    job = told


class NotedPeer:
    """Stands for a connection: keeps what is posted."""

    def __init__(self, number: int, role: str) -> None:
        self.number, self.role, self.domain, self.owner = number, role, DOMAIN, DOMAIN.owner
        self.name, self.process, self.sees = str(number), PeerProcess(1, None), None
        self.who = Credentials(1, os.getuid(), frozenset())
        self.sandbox: list[str] = []
        self.disguise = Undisguised()
        self.posted: list[m.AnyMessage] = []
        self.lean: set[int] = set()
        self.adopted = False
        self._came = anyio.Event()

    def post(self, message: m.AnyMessage, segments: tuple[bytes, ...] = ()) -> None:
        self.posted.append(message)
        self._came.set()
        self._came = anyio.Event()

    def request_name(self, number: int) -> str:
        return f"{self.name}-{number}"

    def finish(self) -> None:
        """Nothing to send."""

    async def next(self, kind: type[Any]) -> Any:
        """The next message, which is of this kind."""
        with anyio.fail_after(30):
            while not self.posted:
                await self._came.wait()
        message = self.posted.pop(0)
        assert isinstance(message, kind), message
        return message


@pytest.fixture
def drive(tmp_path: Path) -> Callable[[Callable[..., Any]], None]:
    """Runs a test's coroutine with an engine, its store, a client and a ready forkserver."""

    def run(body: Callable[..., Any]) -> None:
        async def with_engine() -> None:
            store = SlowStore(tmp_path / "store")
            config = Config(tmp_path / "pool.sock", store.root, slots=2, timeout=600.0, memory=1 << 30, bounds=Bounds())
            async with anyio.create_task_group() as tasks:
                engine = Engine(config, store, "instance", "0", tasks)
                engine.desk = Desk(engine)  # type: ignore[attr-defined]
                tasks.start_soon(engine.run)
                client, forkserver = NotedPeer(1, "client"), NotedPeer(2, "forkserver")
                engine.joined(client)  # type: ignore[arg-type]
                engine.joined(forkserver)  # type: ignore[arg-type]
                await forkserver.next(m.Adopt)
                received(engine, forkserver, m.Ready(1.0), ())
                try:
                    await body(engine, store, client, forkserver)
                finally:
                    store.may_write.set()
                    tasks.cancel_scope.cancel()

        anyio.run(with_engine)

    return run


def test_who_asks_while_a_result_is_written_gets_it_without_a_second_compile(
    drive: Callable[[Callable[..., Any]], None],
) -> None:
    async def body(engine: Any, store: SlowStore, client: NotedPeer, forkserver: NotedPeer) -> None:
        received(engine, client, m.Compile(1, RECIPE), (b"source",))
        spawn = await forkserver.next(m.Spawn)
        received(engine, forkserver, m.JobDone(spawn.job, CONTENTS), (b"pickle",))
        assert (await client.next(m.Compiled)).origin == "compiled"
        received(engine, client, m.Compile(2, RECIPE), (b"source",))
        assert (await client.next(m.Compiled)).origin == "store"
        assert forkserver.posted == []
        assert list(store.root.rglob("*.cpo")) == []

    drive(body)


def test_environment_settings_source_and_name_are_the_identity_and_the_cache_directory_is_not(
    drive: Callable[[Callable[..., Any]], None],
) -> None:
    different = [
        (m.Compile(2, m.Recipe("kernel", {"TRITON_DEBUG": "1"}, {})), b"source"),
        (m.Compile(3, m.Recipe("kernel", {}, {"use_static_triton_launcher": False})), b"source"),
        (m.Compile(4, RECIPE), b"other source"),
        (m.Compile(5, m.Recipe("other", {}, {})), b"source"),
    ]

    async def body(engine: Any, store: SlowStore, client: NotedPeer, forkserver: NotedPeer) -> None:
        for message, source in [(m.Compile(1, RECIPE), b"source"), *different]:
            received(engine, client, message, (source,))
            spawn = await forkserver.next(m.Spawn)
            received(engine, forkserver, m.JobDone(spawn.job, CONTENTS), (b"pickle",))
            assert (await client.next(m.Compiled)).origin == "compiled"
        received(engine, client, m.Compile(6, RECIPE, cache_dir="/elsewhere"), (b"source",))
        assert (await client.next(m.Compiled)).origin == "store"

    drive(body)


def test_a_result_that_differs_from_its_checksum_is_refused(drive: Callable[[Callable[..., Any]], None]) -> None:
    async def body(engine: Any, store: SlowStore, client: NotedPeer, forkserver: NotedPeer) -> None:
        received(engine, client, m.Compile(1, RECIPE), (b"source",))
        spawn = await forkserver.next(m.Spawn)
        with pytest.raises(ProtocolError, match="damaged"):
            received(engine, forkserver, m.JobDone(spawn.job, CONTENTS), (b"other",))
        with pytest.raises(ProtocolError, match="not given"):
            received(engine, NotedPeer(3, "forkserver"), m.JobDone(spawn.job, CONTENTS), (b"pickle",))

    drive(body)


def test_a_forkserver_that_gave_up_answers_for_nothing_any_more(drive: Callable[[Callable[..., Any]], None]) -> None:
    async def body(engine: Any, store: SlowStore, client: NotedPeer, forkserver: NotedPeer) -> None:
        received(engine, client, m.Compile(1, RECIPE), (b"source",))
        spawn = await forkserver.next(m.Spawn)
        received(engine, forkserver, m.Unfit("a second thread"), ())
        await client.next(m.StartForkserver)
        with pytest.raises(ProtocolError, match="not given"):
            received(engine, forkserver, m.JobDone(spawn.job, CONTENTS), (b"pickle",))
        received(engine, client, m.StartFailed("no other"), ())
        assert (await client.next(m.Failed)).failure.kind == "unavailable"

    drive(body)


def test_only_a_finished_compile_says_how_long_a_kernel_takes(drive: Callable[[Callable[..., Any]], None]) -> None:
    async def body(engine: Any, store: SlowStore, client: NotedPeer, forkserver: NotedPeer) -> None:
        source = b"s" * 20_000
        received(engine, client, m.Compile(1, RECIPE), (source,))
        spawn = await forkserver.next(m.Spawn)
        failure = Failure("worker-crashed", "killed", "kernel")
        received(engine, forkserver, m.JobFailed(spawn.job, failure, m.Cost(0.0, 0.0, 0)), ())
        digest = hashlib.sha256(source).hexdigest()
        assert engine.desk._estimator.expected(DOMAIN.owner, digest, source) == from_text(source)

    drive(body)
