"""How many workers may run at once: the smaller of CPU affinity and cgroup quota.

`os.cpu_count()` sees neither, and a container of two cores on a host of 192 would start 192 compiles.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

_T = TypeVar("_T")


def available_slots(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """At least 1; a quota of 2.5 CPUs is 2 slots."""
    affinity = len(os.sched_getaffinity(0))
    return max(1, min([affinity, *(int(quota) for quota in cgroup_quotas(proc, cgroups))]))


def cgroup_quotas(proc: Path, cgroups: Path) -> Iterator[float]:
    """CPUs allowed by each cgroup above this process that sets a quota, version 2 and version 1."""
    for directory, read in cgroup_directories(proc, cgroups, "cpu", _quota_v2, _quota_v1):
        try:
            quota = read(directory)
        except (OSError, ValueError):
            quota = None
        if quota is not None:
            yield quota


def cgroup_directories(proc: Path, cgroups: Path, controller: str, v2: _T, v1: _T) -> Iterator[tuple[Path, _T]]:
    """The cgroups above this process that may have this controller, the nearest first, each with v2 or v1."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from ((directory, v2) for directory in _up_from(cgroups, path))
        elif controller in controllers.split(","):
            yield from ((directory, v1) for directory in _up_from(cgroups / controller, path))


def _up_from(mount: Path, path: str) -> Iterator[Path]:
    # In a container the path may be the host's: what is not below the mount is skipped, the mount's root is not.
    group = mount / path.lstrip("/")
    for directory in [group, *group.parents]:
        yield directory
        if directory == mount:
            return


def _quota_v2(directory: Path) -> float | None:
    quota, period = (directory / "cpu.max").read_text().split()
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(directory: Path) -> float | None:
    quota = int((directory / "cpu.cfs_quota_us").read_text())
    return None if quota < 0 else quota / int((directory / "cpu.cfs_period_us").read_text())
