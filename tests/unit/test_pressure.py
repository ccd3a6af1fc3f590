"""Memory that could be had, of the host and of cgroups."""

from pathlib import Path

import pytest

from compilepool.daemon.pressure import RESERVE_SHARE, WORKER_BYTES, Memory, read_memory

GIB = 1 << 30


@pytest.fixture
def host(tmp_path: Path) -> tuple[Path, Path]:
    """A /proc of a host with 64 GiB, 40 of them available; and no cgroups."""
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    cgroups.mkdir()
    (proc / "meminfo").write_text(f"MemTotal: {64 << 20} kB\nMemAvailable: {40 << 20} kB\nHugePages: 0\n")
    (proc / "self" / "cgroup").write_text("0::/jobs/mine\n")
    return proc, cgroups


def limit(directory: Path, most: str, used: int, cache: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "memory.max").write_text(f"{most}\n")
    (directory / "memory.current").write_text(f"{used}\n")
    (directory / "memory.stat").write_text(f"anon 1\nactive_file {cache}\ninactive_file {cache}\n")


def test_without_a_limit_it_is_the_hosts(host: tuple[Path, Path]) -> None:
    assert read_memory(*host) == Memory(64 * GIB, 40 * GIB)


def test_the_tightest_cgroup_counts_and_its_page_cache_is_not_used(host: tuple[Path, Path]) -> None:
    proc, cgroups = host
    limit(cgroups / "jobs", str(16 * GIB), 12 * GIB, cache=GIB)
    limit(cgroups / "jobs" / "mine", "max", 12 * GIB, cache=GIB)
    assert read_memory(proc, cgroups) == Memory(16 * GIB, 6 * GIB)


def test_room_leaves_a_reserve() -> None:
    total = 100 * GIB
    reserve = int(RESERVE_SHARE * total)
    assert Memory(total, reserve + 3 * WORKER_BYTES).room == 3
    assert Memory(total, reserve - 1).room == -1


def test_it_says_what_it_is() -> None:
    assert str(Memory(2 * GIB, GIB)) == "1024 of 2048 MiB available"
