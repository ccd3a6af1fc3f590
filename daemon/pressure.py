"""How much memory the host, or the daemon's cgroup, has left, and how many more workers that is enough for.

Available memory is what could be had without swapping: the kernel's own estimate for the host, and for a cgroup its
limit less what it uses, where the page cache does not count as used.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from compilepool.daemon.slots import cgroup_directories

# A typical worker dirties 100 to 200 MB and ptxas as much again; LLVM takes gigabytes for few kernels.
WORKER_BYTES = 512 << 20
# What is left to everybody else on the host.
RESERVE_SHARE = 0.05
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes in all, and bytes that could be had."""

    total: int
    available: int

    def __str__(self) -> str:
        return f"{self.available // _MIB} of {self.total // _MIB} MiB available"

    @property
    def room(self) -> int:
        """So many more workers fit; negative if there should be fewer."""
        return (self.available - int(RESERVE_SHARE * self.total)) // WORKER_BYTES


def read_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> Memory:
    """The tightest of the host and the cgroups above this process."""
    return min([_of_host(proc), *_of_cgroups(proc, cgroups)], key=lambda memory: memory.available)


def default_limit() -> int:
    """Bytes that one worker with its children may take unless the daemon is told otherwise: a quarter of all."""
    return read_memory().total // 4


def _of_host(proc: Path) -> Memory:
    lines = (line.split() for line in (proc / "meminfo").read_text().splitlines())
    fields = {words[0]: int(words[1]) * 1024 for words in lines if len(words) > 1}
    return Memory(fields["MemTotal:"], fields["MemAvailable:"])


def _of_cgroups(proc: Path, cgroups: Path) -> Iterator[Memory]:
    for directory, names in cgroup_directories(proc, cgroups, "memory", _FILES_V2, _FILES_V1):
        try:
            limit = int((directory / names.limit).read_text())
            used = int((directory / names.used).read_text())
            stat = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            # No limit ("max"), or a controller that is not there.
            continue
        cache = sum(int(stat.get(f"{names.prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
        yield Memory(limit, max(0, limit - used + cache))


@dataclass(frozen=True, slots=True)
class _Files:
    limit: str
    used: str
    prefix: str


_FILES_V2 = _Files("memory.max", "memory.current", "")
_FILES_V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
