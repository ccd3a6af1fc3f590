"""What a service manager gives the daemon and wants to hear: sockets that listen already, readiness, signs of life.

The protocols of systemd, which others speak too: sd_listen_fds(3), sd_notify(3), sd_watchdog_enabled(3). The
`FileDescriptorName=` of a socket unit is the namespace of its socket; without one it is the host's own.
"""

import os
import socket
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field

from compilepool.daemon.owner import HOST, is_namespace

_FIRST = 3
# What systemd calls sockets that have no name of their own: the unit, or this.
_UNNAMED = ("", "unknown", "host")


class BadActivation(Exception):
    """What the service manager passed can't be used; the message says what to change."""


def inherited_sockets(environ: MutableMapping[str, str]) -> Iterator[tuple[str, socket.socket]]:
    """The sockets that were passed to this process, each with its namespace; raises BadActivation.

    The variables are removed: they are not for what this process starts.
    """
    pid, count, names = (environ.pop(f"LISTEN_{name}", "") for name in ("PID", "FDS", "FDNAMES"))
    if pid != str(os.getpid()) or not count.isdigit():
        return
    named = names.split(":") if names else []
    for index in range(int(count)):
        passed = socket.socket(fileno=_FIRST + index)
        passed.setblocking(False)
        os.set_inheritable(passed.fileno(), False)
        if passed.family != socket.AF_UNIX or passed.type != socket.SOCK_STREAM:
            raise BadActivation(
                "a socket was passed that is no unix stream socket: ListenStream= with a path is needed"
            )
        yield _namespace(named[index] if index < len(named) else ""), passed


def _namespace(name: str) -> str:
    if name in _UNNAMED or name.endswith(".socket"):
        return HOST
    if not is_namespace(name):
        raise BadActivation(f"FileDescriptorName={name} can't be a namespace: lower case letters, digits, '_.-'")
    return name


@dataclass(frozen=True, slots=True)
class ServiceManager:
    """Whom to tell how it goes ('': nobody), and how often (None: it does not watch)."""

    address: str = ""
    watchdog: float | None = None
    _socket: socket.socket = field(default_factory=lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))

    def tell(self, **state: object) -> None:
        """Send e.g. READY=1; a manager that has gone is no trouble of ours."""
        if self.address:
            lines = "\n".join(f"{name}={value}" for name, value in state.items())
            target = "\0" + self.address[1:] if self.address.startswith("@") else self.address
            try:
                self._socket.sendto(lines.encode(), target)
            except OSError:
                return


def service_manager(environ: MutableMapping[str, str]) -> ServiceManager:
    """The one that started this process, if one did; the variables are removed."""
    address, usec, pid = (environ.pop(name, "") for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"))
    watches = usec.isdigit() and int(usec) > 0 and pid in ("", str(os.getpid()))
    return ServiceManager(address, int(usec) / 1e6 if watches else None)
