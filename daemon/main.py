"""One daemon's life: lock and socket, then engine and server, until idle, told to stop, or killed."""

import os
import resource
import signal
import uuid
from collections.abc import Callable
from importlib.metadata import version

import anyio

from compilepool.daemon.config import Config
from compilepool.daemon.engine import Engine
from compilepool.daemon.listener import Listener, listening
from compilepool.daemon.log import event as log_event, to_stderr
from compilepool.daemon.memory import return_freed_memory
from compilepool.daemon.server import Server
from compilepool.daemon.store import Store

# A daemon that drains gives up its store when what it is writing is written.
STORE_SECONDS = 5.0


def serve(
    config: Config, ready: Callable[[], None] = lambda: None, stop_other: Callable[[], None] | None = None
) -> None:
    """Serve until done; `ready` is called when the socket listens.

    stop_other: take over from the daemon that listens there; tells it to stop
    Raises AlreadyRunning, BadSocketPath, StoreInUse.
    """
    to_stderr()
    return_freed_memory()
    _allow_descriptors()
    store = Store(config.store, config.bounds)
    with listening(config.socket, stop_other) as listener:
        store.open(STORE_SECONDS)
        try:
            anyio.run(_serve, config, listener, store, ready)
        finally:
            store.close()


def _allow_descriptors() -> None:
    """Each connection is one: as many as the hard limit lets have, instead of the usual 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(config: Config, listener: Listener, store: Store, ready: Callable[[], None]) -> None:
    async with anyio.create_task_group() as background:
        engine = Engine(config, store, uuid.uuid4().hex, version("compilepool"), background)
        server = Server(engine)
        engine.on_drain = server.stop
        background.start_soon(_obey_signals, engine)
        async with anyio.create_task_group() as connections:
            connections.start_soon(server.serve, listener)
            log_event("serving", socket=config.socket, store=config.store, slots=config.slots, pid=os.getpid())
            ready()
            await engine.run()
            server.stop()
        background.cancel_scope.cancel()
    log_event("stopped")


async def _obey_signals(engine: Engine) -> None:
    """The first SIGTERM or SIGINT drains, the second gives up what runs."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        again = False
        async for _ in signals:
            engine.drain(now=again)
            again = True
