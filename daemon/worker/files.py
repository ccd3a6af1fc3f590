"""Reads and removes what a worker has left in its own directories, where a kernel's source may have put anything."""

import contextlib
import errno
import os
import shutil
import stat
import subprocess
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


def remove_tree(path: Path) -> None:
    """Remove a directory with all below it, as far as that goes: it may be deeper than any path is long."""
    with contextlib.suppress(RecursionError):
        shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        for closed in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
            subprocess.run([*closed, "--", str(path)], stderr=subprocess.DEVNULL, check=False)
