"""Landlock: takes from a process, and from all that it starts, what its code has no business with (landlock(7)).

The kernel's newest rules are used as far as it has them (`version`); there is no library of libc for these calls.

    version 1   writing to files, making and removing them, except below directories that are named; reading, likewise
    version 4   TCP: no bind, no connect
    version 6   abstract unix sockets and signals: only among processes of the same sandbox
"""

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
# The same on every architecture (include/uapi/asm-generic/unistd.h).
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
# include/uapi/linux/landlock.h
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE, _MAKE_CHAR, _MAKE_BLOCK = 1 << 4 | 1 << 5, 1 << 6, 1 << 11
_MAKE = 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 12
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_NET_TCP = 1 << 0 | 1 << 1
_SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 1 << 0 | 1 << 1
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_READ = _EXECUTE | _READ_FILE | _READ_DIR


def version() -> int:
    """Of this kernel's Landlock; 0: it has none, or it is switched off."""
    found: int = _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    return max(0, found)


def restrict(writable: Iterable[Path], readable: Iterable[Path] | None) -> None:
    """From here on this process writes below `writable` only, and reads below `readable` (None: whatever it may).

    The process must have no_new_privs. Raises OSError.
    """
    newest = version()
    write = _WRITE_FILE | _REMOVE | _MAKE | _MAKE_CHAR | _MAKE_BLOCK
    write |= (_REFER if newest >= 2 else 0) | (_TRUNCATE if newest >= 3 else 0)
    handled = write | (_READ if readable is not None else 0)
    attributes = struct.pack(
        "QQQ", handled, _NET_TCP if newest >= 4 else 0, _SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS if newest >= 6 else 0
    )
    size = 24 if newest >= 6 else 16 if newest >= 4 else 8
    ruleset = _call(_CREATE_RULESET, attributes, ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        for path in writable:
            _allow(ruleset, path, handled & ~_MAKE_CHAR & ~_MAKE_BLOCK)
        for path in readable or ():
            _allow(ruleset, path, handled & _READ)
        _call(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, access: int) -> None:
    try:
        below = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        rights = access if path.is_dir() else access & _OF_FILES
        if rights:
            rule = struct.pack("=Qi", rights, below)
            _call(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), rule, ctypes.c_uint32(0))
    finally:
        os.close(below)


def _call(number: int, *arguments: object) -> int:
    done: int = _libc.syscall(number, *arguments)
    if done < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"Landlock: {os.strerror(error)}")
    return done
