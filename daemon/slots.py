"""How many workers may run at once: the smaller of CPU affinity and cgroup quota.

`os.cpu_count()` sees neither, and a container of two cores on a host of 192 would start 192 compiles.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path


def available_slots(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """At least 1; a quota of 2.5 CPUs is 2 slots."""
    affinity = len(os.sched_getaffinity(0))
    return max(1, min([affinity, *(int(quota) for quota in cgroup_quotas(proc, cgroups))]))


def cgroup_quotas(proc: Path, cgroups: Path) -> Iterator[float]:
    """CPUs allowed by each cgroup above this process that sets a quota, version 2 and version 1."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _quotas(cgroups, path, _quota_v2)
        elif "cpu" in controllers.split(","):
            yield from _quotas(cgroups / "cpu", path, _quota_v1)


def _quotas(mount: Path, path: str, read: Callable[[Path], float | None]) -> Iterator[float]:
    # In a container the path may be the host's: what is not below the mount is skipped, the mount's root is not.
    group = mount / path.lstrip("/")
    for directory in [group, *group.parents]:
        try:
            quota = read(directory)
        except (OSError, ValueError):
            quota = None
        if quota is not None:
            yield quota
        if directory == mount:
            return


def _quota_v2(directory: Path) -> float | None:
    quota, period = (directory / "cpu.max").read_text().split()
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(directory: Path) -> float | None:
    quota = int((directory / "cpu.cfs_quota_us").read_text())
    return None if quota < 0 else quota / int((directory / "cpu.cfs_period_us").read_text())
