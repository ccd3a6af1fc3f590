"""Reads what a worker has left in its own directories, where a kernel's source may have put anything."""

import errno
import os
import stat
from pathlib import Path


def read_plain(path: Path) -> bytes:
    """A file's bytes; raises ValueError for what is a link, has a second name, or is no file at all."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as exc:
        if exc.errno in (errno.ELOOP, errno.ENXIO):
            raise ValueError(f"{path.name} is no plain file") from exc
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(descriptor)
        raise ValueError(f"{path.name} is no plain file")
    with os.fdopen(descriptor, "rb") as opened:
        return opened.read()
