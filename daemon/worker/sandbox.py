"""What a worker can't do, whatever the kernel that it compiles tries: each part as far as the host's kernel has it.

    always     no_new_privs: no setuid program gives it rights; limits of `child` and `limits`
    landlock   writes below its scratch directory only; no TCP, no abstract socket or signal that leaves it
    seccomp    no socket (one would lead to the daemon, which calls callables), no shared memory, no change of modes and
               owners, nothing of mounts, namespaces, keys, other processes

A backend's worker, which compiles for users that don't trust each other, also reads nothing but its toolchain. A
callable that a program submits is that program's own code, and may need whatever it needs: it gets no_new_privs alone.

COMPILEPOOL_SANDBOX=0 in a forkserver's environment switches it off, unless the daemon's configuration requires it.
"""

import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from compilepool.daemon.worker import landlock, seccomp
from compilepool.protocol.detect import NoToolchain, package_root

VARIABLE = "COMPILEPOOL_SANDBOX"
_PR_SET_NO_NEW_PRIVS = 38
_libc = ctypes.CDLL(None, use_errno=True)
# Where programs and their libraries are, and what those read.
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt", "/etc/ld.so.cache", "/etc/ld.so.conf", "/proc", "/sys")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")


def probe() -> list[str]:
    """What workers get here, e.g. ['landlock 7', 'seccomp']."""
    if os.environ.get(VARIABLE) == "0":
        return []
    found = landlock.version()
    return [f"landlock {found}"] * (found > 0) + ["seccomp"] * seccomp.available()


def lacking(requires: Sequence[str]) -> list[str]:
    """What of this workers would not get."""
    here = probe()
    return [wanted for wanted in requires if not any(has(told, wanted) for told in here)]


def has(told: str, wanted: str) -> bool:
    """Whether 'landlock 7' is what was wanted by 'landlock', or by 'landlock 6'."""
    name, _, version = told.partition(" ")
    wanted_name, _, least = wanted.partition(" ")
    return name == wanted_name and int(version or 0) >= int(least or 0)


def give_up_privileges() -> None:
    """no_new_privs, for good."""
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def enter(scratch: Path, *, for_all: bool = False) -> None:
    """From here on this process is a worker's, for good; `for_all`: a backend's. Raises OSError."""
    here = {told.split()[0] for told in probe()}
    if "landlock" in here:
        landlock.restrict([scratch, *map(Path, _DEVICES)], _toolchain() if for_all else None)
    if "seccomp" in here:
        seccomp.restrict()


def _toolchain() -> list[Path]:
    """Directories that a compiler reads."""
    found = [Path(name) for name in (*_SYSTEM, sys.prefix, sys.base_prefix)]
    for package in ("compilepool", "triton", "torch", "msgspec"):
        try:
            found.append(package_root(package))
        except NoToolchain:
            continue
    return found
