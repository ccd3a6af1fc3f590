import os
from pathlib import Path

import pytest

from compilepool.daemon.slots import available_slots


@pytest.fixture
def host(tmp_path: Path) -> tuple[Path, Path]:
    """An empty /proc and /sys/fs/cgroup."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "cgroup").mkdir()
    return tmp_path / "proc", tmp_path / "cgroup"


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_a_quota_it_is_the_affinity(host: tuple[Path, Path]) -> None:
    assert available_slots(*host) == len(os.sched_getaffinity(0))


def test_version_2_takes_the_smallest_quota_above(host: tuple[Path, Path]) -> None:
    proc, cgroups = host
    put(proc / "self/cgroup", "0::/user.slice/job\n")
    put(cgroups / "user.slice/job/cpu.max", "max 100000\n")
    put(cgroups / "user.slice/cpu.max", "100000 100000\n")
    assert available_slots(*host) == 1


def test_version_1(host: tuple[Path, Path]) -> None:
    proc, cgroups = host
    put(proc / "self/cgroup", "4:cpu,cpuacct:/docker/abc\n3:memory:/x\n")
    put(cgroups / "cpu/docker/abc/cpu.cfs_quota_us", "-1\n")
    put(cgroups / "cpu/cpu.cfs_quota_us", "150000\n")
    put(cgroups / "cpu/cpu.cfs_period_us", "100000\n")
    assert available_slots(*host) == 1


def test_less_than_one_cpu_is_one_slot(host: tuple[Path, Path]) -> None:
    proc, cgroups = host
    put(proc / "self/cgroup", "0::/\n")
    put(cgroups / "cpu.max", "20000 100000\n")
    assert available_slots(*host) == 1


def test_in_a_container_that_does_not_show_the_path(host: tuple[Path, Path]) -> None:
    proc, cgroups = host
    put(proc / "self/cgroup", "0::/../../elsewhere\n")
    put(cgroups / "cpu.max", "garbage\n")
    assert available_slots(*host) == len(os.sched_getaffinity(0))
