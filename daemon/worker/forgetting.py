"""Overwrites memory that is freed: the next worker of a backend is forked from the process that passed others' TTIR on.

A worker is a copy of its forkserver, with whatever lies in freed memory. So a backend's Python uses malloc for
everything, and malloc overwrites what it is given back (mallopt(3), M_PERTURB; what its threads' caches take is not, so
there are none). Workers need none of that: they end.
"""

import ctypes
import os
import sys

_M_PERTURB = -6
_VARIABLES = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.perturb=165:glibc.malloc.tcache_count=0"}


def forget_what_is_freed() -> None:
    """Start this program again with an allocator that does so, unless it has one; the variables go no further."""
    if any(os.environ.get(name) != value for name, value in _VARIABLES.items()):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **_VARIABLES})
    for name in _VARIABLES:
        del os.environ[name]


def forget_no_more() -> None:
    """This process is a worker: its own compile need not be slower."""
    ctypes.CDLL(None).mallopt(_M_PERTURB, 0)
