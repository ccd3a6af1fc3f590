"""The daemon's settings, read once at start and frozen."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from compilepool.daemon.bounds import Bounds
from compilepool.daemon.pressure import default_limit
from compilepool.daemon.scheduler import TIMEOUT_SECONDS
from compilepool.daemon.settings import Settings
from compilepool.daemon.slots import available_slots
from compilepool.protocol.rendezvous import own_socket

STORE_VARIABLE = "COMPILEPOOL_STORE"


@dataclass(frozen=True, slots=True)
class Config:
    """What a daemon is told; times in seconds.

    socket: path of the host's own listening socket; namespaces: of the others, by their names
    store: directory of the artifact store
    slots: how many workers may run at once
    timeout: how long one kernel may compile; a request may ask for less
    memory: bytes that one worker with its children may take
    bounds: how much the store keeps
    idle_exit: exit after this long without clients and jobs; None: never
    drain: how long SIGTERM waits for what runs
    settings: of the configuration file; settings_file: where to read them again (None: there is none)
    """

    socket: Path
    store: Path
    slots: int
    timeout: float
    memory: int
    bounds: Bounds
    idle_exit: float | None = None
    drain: float = 60.0
    namespaces: Mapping[str, Path] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    settings_file: Path | None = None

    @property
    def mode(self) -> int:
        """Of the sockets: who is let in is decided when they are there (`access`)."""
        return 0o600 if self.settings.access is None else 0o666


def default_store(environ: Mapping[str, str], uid: int) -> Path:
    """COMPILEPOOL_STORE, or `compilepool` under XDG_CACHE_HOME or ~/.cache, or /tmp/compilepool-UID/store."""
    if named := environ.get(STORE_VARIABLE):
        return Path(named).absolute()
    if cache := environ.get("XDG_CACHE_HOME"):
        return Path(cache) / "compilepool"
    try:
        return Path(environ.get("HOME") or Path.home()) / ".cache" / "compilepool"
    except RuntimeError:
        # A uid that no passwd entry knows, as containers have them.
        return Path(f"/tmp/compilepool-{uid}/store")


def read_config(
    environ: Mapping[str, str],
    *,
    socket: Path | None = None,
    store: Path | None = None,
    slots: int | None = None,
    timeout: float = TIMEOUT_SECONDS,
    memory: int | None = None,
    bounds: Bounds | None = None,
    idle_exit: float | None = None,
    namespaces: Mapping[str, Path] | None = None,
    settings: Settings | None = None,
    settings_file: Path | None = None,
) -> Config:
    """Settings from the command line, then the environment, then this host."""
    return Config(
        socket=(socket or own_socket(environ, os.getuid())).absolute(),
        store=(store or default_store(environ, os.getuid())).absolute(),
        slots=slots or available_slots(),
        timeout=timeout,
        memory=memory or default_limit(),
        bounds=bounds or Bounds(),
        idle_exit=idle_exit,
        namespaces=namespaces or {},
        settings=settings or Settings(),
        settings_file=settings_file,
    )
