"""Keeps a daemon that has moved gigabytes small again afterwards.

glibc raises its mmap threshold with the largest block that was freed, up to 32 MiB, and then keeps such blocks in the
heap; threads get heaps of their own. Results are a few hundred kilobytes each: with a fixed threshold they go back to
the system when they are sent (measured after 400 kernels: 54 MB without, see the benchmarks for with).
"""

import ctypes

_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_THRESHOLD_BYTES = 64 << 10


def return_freed_memory() -> None:
    """Fix the allocator's thresholds, where the C library has them; before the first thread."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        # Not glibc: its allocator has no such habit.
        return
    mallopt(_M_MMAP_THRESHOLD, _THRESHOLD_BYTES)
    mallopt(_M_ARENA_MAX, 1)
