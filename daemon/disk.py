"""What the store asks of the disk, and of the host: a lock, room, what is in memory, and whether the power was cut."""

import fcntl
import os
import time
from pathlib import Path

# Read at once if it is in memory, and at most so large: it is hashed meanwhile, at a gigabyte a second.
_GLANCE_BYTES = 1 << 20
_POLL_SECONDS = 0.05
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "glusterfs", "9p", "afs", "beegfs", "fuse.sshfs", "gpfs")


class StoreInUse(Exception):
    """Another daemon uses this store."""


def lock(path: Path, patience: float) -> int:
    """The descriptor of a lock file, locked for as long as it is open; raises StoreInUse after so many seconds."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                raise StoreInUse(
                    f"another daemon uses the store {path.parent}: stop it, or give this one its own (--store)"
                ) from exc
            time.sleep(_POLL_SECONDS)
        else:
            return descriptor


def boot_id() -> str:
    """Of this boot of the host."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def read_cached(path: Path) -> bytes | None:
    """A file's bytes, if all of them are in the page cache."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        buffer = bytearray(min(os.fstat(descriptor).st_size, _GLANCE_BYTES + 1))
        whole = os.preadv(descriptor, [buffer], 0, os.RWF_NOWAIT) == len(buffer) <= _GLANCE_BYTES
    except OSError:
        # It would have to wait (EAGAIN), or the filesystem can't say (EOPNOTSUPP).
        return None
    finally:
        os.close(descriptor)
    return bytes(buffer) if whole else None


def free(directory: Path) -> int:
    """Bytes that are free where a directory is."""
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


def network_filesystem(directory: Path) -> str:
    """The type of the network filesystem that a directory is on; '' if it is on a local one."""
    found, longest = "", -1
    place = str(directory.resolve())
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        mount = fields.split(" ")[4]
        if len(mount) > longest and Path(place).is_relative_to(mount):
            found, longest = rest.split(" ")[0], len(mount)
    return found if found in _NETWORK else ""
