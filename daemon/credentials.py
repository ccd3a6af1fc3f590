"""Who is at the other end of a unix socket, as the kernel says: nobody can claim to be another.

What a connection may do is decided when it is made, by who made it (unix(7), SO_PEERCRED): to hand its descriptor to
another process changes nothing. A process number may be another's by the time that it is used, so it goes with a
descriptor of the process where the kernel has them (SO_PEERPIDFD, Linux 6.5).
"""

import contextlib
import os
import select
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

_UCRED = struct.Struct("3i")
# Not in Python's socket module yet (include/uapi/asm-generic/socket.h).
_SO_PEERGROUPS, _SO_PEERPIDFD = 59, 77
# As many as getsockopt gives a Python program: 256.
_GROUPS_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Credentials:
    """Process number, uid and groups of a peer, when it connected."""

    pid: int
    uid: int
    groups: frozenset[int]


def credentials_of(connected: socket.socket) -> Credentials:
    """Of whoever connected this socket."""
    pid, uid, gid = _UCRED.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    groups = {gid}
    with contextlib.suppress(OSError):
        raw = connected.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
        groups.update(group for (group,) in struct.iter_unpack("I", raw))
    return Credentials(pid, uid, frozenset(groups))


def overflow_uid() -> int:
    """The uid that stands for all that a user namespace does not map: nobody in particular (user_namespaces(7))."""
    try:
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return 65534


class PeerProcess:
    """A peer's process, which may end and whose number may be given to another; made by `process_of`."""

    def __init__(self, pid: int, descriptor: int | None) -> None:
        self.pid = pid
        self._descriptor = descriptor

    @property
    def alive(self) -> bool:
        """Whether it may still be there: where the kernel can't tell, it may."""
        if self._descriptor is None:
            return True
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        """Let go of it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def process_of(connected: socket.socket, pid: int) -> PeerProcess:
    """The process that connected this socket."""
    try:
        raw = connected.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, struct.calcsize("i"))
    except OSError:
        return PeerProcess(pid, None)
    return PeerProcess(pid, struct.unpack("i", raw)[0])
