"""One daemon's life: sockets and store, then engine and server, until idle, told to stop, or killed.

    SIGTERM, SIGINT   drain; a second one gives up what runs
    SIGHUP            read the configuration file again

Under a service manager the sockets are its own (`activation`), and it is told how things stand. Its watchdog is fed by
the loop that makes all decisions: one that is stuck is restarted.
"""

import contextlib
import os
import resource
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version

import anyio

from compilepool.daemon.activation import ServiceManager, service_manager
from compilepool.daemon.config import Config
from compilepool.daemon.engine import Engine
from compilepool.daemon.events import Tick
from compilepool.daemon.listener import Listener, inherited, listening
from compilepool.daemon.log import event as log_event, to_stderr
from compilepool.daemon.memory import return_freed_memory
from compilepool.daemon.owner import HOST
from compilepool.daemon.server import Server
from compilepool.daemon.settings import BadSettings, read_settings
from compilepool.daemon.store import Store

# A daemon that drains gives up its store when what it is writing is written.
STORE_SECONDS = 5.0
# The watchdog is fed so often in the time that it waits (sd_watchdog_enabled(3) says: twice).
FEEDS = 3


def serve(
    config: Config, ready: Callable[[], None] = lambda: None, stop_other: Callable[[], None] | None = None
) -> None:
    """Serve until done; `ready` is called when the sockets listen.

    stop_other: take over from the daemon that listens there; tells it to stop
    Raises AlreadyRunning, BadSocketPath, StoreInUse, BadActivation, BadSettings.
    """
    to_stderr()
    return_freed_memory()
    _allow_descriptors()
    manager = service_manager(os.environ)
    store = Store(config.store, config.bounds)
    with _listeners(config, stop_other) as listeners:
        store.open(STORE_SECONDS)
        try:
            anyio.run(_serve, replace(config, socket=listeners[0].path), listeners, store, manager, ready)
        finally:
            store.close()


@contextmanager
def _listeners(config: Config, stop_other: Callable[[], None] | None) -> Iterator[list[Listener]]:
    """Those of the service manager, or the daemon's own."""
    if passed := inherited(os.environ):
        yield passed
        return
    with listening({HOST: config.socket, **config.namespaces}, config.mode, stop_other) as listeners:
        yield listeners


def _allow_descriptors() -> None:
    """Each connection is one: as many as the hard limit lets have, instead of the usual 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A service manager that has set the limit may not let it be set.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(
    config: Config, listeners: list[Listener], store: Store, manager: ServiceManager, ready: Callable[[], None]
) -> None:
    async with anyio.create_task_group() as background:
        engine = Engine(config, store, uuid.uuid4().hex, version("compilepool"), background)
        server = Server(engine)

        def stopping() -> None:
            manager.tell(STOPPING=1)
            server.stop()

        engine.on_drain = stopping
        background.start_soon(_obey_signals, engine, manager)
        if manager.watchdog is not None:
            background.start_soon(_feed_watchdog, engine, manager, manager.watchdog / FEEDS)
        async with anyio.create_task_group() as connections:
            connections.start_soon(server.serve, listeners)
            for listener in listeners:
                log_event("serving", socket=listener.path, namespace=listener.namespace or "the host's",
                          store=config.store, slots=config.slots, pid=os.getpid())  # fmt: skip
            manager.tell(READY=1)
            ready()
            await engine.run()
            server.stop()
        background.cancel_scope.cancel()
    log_event("stopped")


async def _obey_signals(engine: Engine, manager: ServiceManager) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        again = False
        async for number in signals:
            if number == signal.SIGHUP:
                _reload(engine, manager)
            else:
                engine.drain(now=again)
                again = True


def _reload(engine: Engine, manager: ServiceManager) -> None:
    manager.tell(RELOADING=1)
    try:
        if engine.config.settings_file is None:
            raise BadSettings("there is no configuration file: this daemon was started without --config")
        engine.settle(read_settings(engine.config.settings_file))
    except BadSettings as exc:
        log_event("not-reloaded", reason=exc)
    else:
        log_event("reloaded", file=engine.config.settings_file)
    manager.tell(READY=1)


async def _feed_watchdog(engine: Engine, manager: ServiceManager, seconds: float) -> None:
    """Each sign of life is a decision made: a scheduler that is stuck makes none."""
    while True:
        engine.feed(Tick())
        manager.tell(WATCHDOG=1)
        await anyio.sleep(seconds)
