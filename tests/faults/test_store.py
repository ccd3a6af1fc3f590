"""Whatever happens to the disk, and whoever writes at once: a read is a miss or whole, and compiles go on."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from compilepool.daemon.bounds import Bounds
from compilepool.daemon.store import Store
from tests.conftest import Daemon
from tests.sources import pointwise
from tests.unit.test_index_bounds import IDENTITY, key, opened, stored

pytestmark = pytest.mark.faults

KILLED_AT = """
import os, signal, sys
from pathlib import Path
from tests.unit.test_index_bounds import IDENTITY, key, opened, stored

steps, root, what = int(sys.argv[1]), sys.argv[2], sys.argv[3]
CHANGES = ("os.rename", "os.mkdir", "os.remove", "sqlite3.connect", "shutil.rmtree", "os.truncate")
seen = 0

def audit(event, arguments):
    global seen
    writes = event == "open" and str(arguments[0]).startswith(root) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    if (writes or event in CHANGES) and armed:
        seen += 1
        if seen == steps:
            os.kill(os.getpid(), signal.SIGKILL)

armed = what == "open"
sys.addaudithook(audit)
store = opened(Path(root), objects=3)
armed = True
if what == "put":
    for number in range(10, 15):
        store.put(key(number), "1000", IDENTITY, stored(number))
store.close()
print("through")
"""


@pytest.mark.parametrize("what", ["open", "put"])
def test_a_kill_at_any_step_leaves_only_whole_objects(tmp_path: Path, what: str) -> None:
    """Each change of the disk in turn is the one before which the process dies; until it gets through."""
    for step in range(1, 200):
        root = tmp_path / str(step)
        store = opened(root, objects=3)
        for number in (1, 2, 3):
            store.put(key(number), "1000", IDENTITY, stored(number))
        store.close()
        command = [sys.executable, "-c", KILLED_AT, str(step), str(root), what]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        again = opened(root, objects=3)
        whole = [number for number in range(20) if (found := again.get(key(number))) and found == stored(number)]
        assert again.damaged == 0, f"step {step} left a damaged object"
        assert again.total[0] == len(list((root / "objects").rglob("*.cpo"))) == len(whole) >= 2
        assert list((root / "new").iterdir()) == []
        assert again.put(key(99), "1000", IDENTITY, stored(99))
        again.close()
        if done.returncode == 0:
            assert step > 5, f"only {step} steps were seen: {done.stderr}"
            return
        assert done.returncode == -9, done.stderr
    pytest.fail("it never got through")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 16 MiB; the index and its log take up to five."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(place)], check=False)
    if mounted.returncode != 0:
        pytest.skip("needs the right to mount a filesystem")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path, name: str) -> None:
    """Leave nothing free."""
    with (disk / name).open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass


def test_on_a_full_disk_what_is_old_makes_room(small_disk: Path) -> None:
    store = opened(small_disk / "store")
    for number in range(60):
        assert store.put(key(number), "1000", IDENTITY, stored(number, 1_000_000)), store.trouble
    assert store.evicted > 30
    assert store.get(key(59)) == stored(59, 1_000_000)
    assert (store.damaged, store.trouble) == (0, "")
    store.close()


def test_a_disk_that_others_fill_is_told_and_costs_only_the_reuse(small_disk: Path) -> None:
    store = opened(small_disk / "store")
    for number in range(3):
        assert store.put(key(number), "1000", IDENTITY, stored(number, 50_000))
    store.pin([key(0), key(1), key(2)], "1000", pinned=True)
    fill(small_disk, "filler")
    assert not store.put(key(4), "1000", IDENTITY, stored(4, 50_000))
    assert "could not write it: [Errno 28]" in store.trouble
    assert [store.get(key(number)) for number in range(3)] == [stored(number, 50_000) for number in range(3)]
    (small_disk / "filler").unlink()
    assert store.put(key(4), "1000", IDENTITY, stored(4, 50_000))
    assert (store.damaged, store.trouble) == (0, "")
    store.close()


def test_a_daemon_on_a_full_disk_compiles_and_says_so(small_disk: Path, tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, "--store", str(small_disk / "store"), "--store-free", "0")
    try:
        fill(small_disk, "filler")
        with daemon.pool() as pool:
            kernel = pointwise("on_a_full_disk")
            assert pool.warm(kernel.name, kernel.source).result(timeout=120)
            while not (trouble := pool.status().store_trouble):
                pass
            assert "[Errno 28]" in trouble
    finally:
        daemon.close()


def test_a_store_that_may_not_be_written_keeps_nothing_and_the_daemon_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    daemon = Daemon(tmp_path, "--store", str(tmp_path / "file" / "store"))
    try:
        with daemon.pool() as pool:
            kernel = pointwise("not_kept")
            assert pool.warm(kernel.name, kernel.source).result(timeout=120)
            assert "Not a directory" in pool.status().store_trouble
    finally:
        daemon.close()


def test_a_second_daemon_on_the_same_store_is_refused(daemon: Daemon, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "compilepool", "serve", "--socket", str(tmp_path / "other.sock")]
    done = subprocess.run(
        [*command, "--store", str(daemon.store)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert f"another daemon uses the store {daemon.store}" in done.stderr


WITHOUT_DESCRIPTORS = """
import os, resource, sys
from pathlib import Path
from tests.unit.test_index_bounds import IDENTITY, key, opened, stored

store = opened(Path(sys.argv[1]))
store.put(key(1), "1000", IDENTITY, stored(1))
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
assert store.get(key(1)) is None
assert not store.put(key(2), "1000", IDENTITY, stored(2))
trouble = store.trouble
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
assert "Too many open files" in trouble, trouble
assert store.get(key(1)) == stored(1)
assert store.put(key(2), "1000", IDENTITY, stored(2))
assert (store.trouble, store.damaged) == ("", 0)
"""


def test_without_descriptors_it_is_a_miss_and_well_again_afterwards(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_DESCRIPTORS, str(tmp_path)], check=True, timeout=60)


WRITES = """
import os, random, sys
from pathlib import Path
from tests.faults.emitting import look, write

who, keys, cache, how = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
order = list(range(keys))
# Half of them meet at the same keys, half come across.
random.Random(who // 2).shuffle(order)
sys.stdin.read(1)
wrong = 0
for number in order:
    write(how, number, cache)
    wrong += not look(number, cache)
print(wrong)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["compilepool", "triton"])
def test_sixteen_processes_that_write_the_same_thousand_keys(tmp_path: Path, how: str) -> None:
    """What a reader finds is whole, and a directory that is there is complete (Triton's own are there before)."""
    cache, keys = tmp_path / "cache", 1000
    command = [sys.executable, "-c", WRITES]
    writers = [
        subprocess.Popen(
            [*command, str(who), str(keys), str(cache), how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for who in range(16)
    ]
    watcher = subprocess.Popen(
        [sys.executable, "-c", WATCHES, str(cache), str(keys)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    for process in (watcher, *writers):
        assert process.stdin is not None
        process.stdin.write("x")
        process.stdin.flush()
    assert [process.communicate(timeout=300)[0].strip() for process in writers] == ["0"] * 16
    incomplete, seen = map(int, watcher.communicate(timeout=300)[0].split())
    assert seen == keys
    if how == "compilepool":
        assert incomplete == 0, "a directory was there before its files were"
        assert [path.name for path in cache.iterdir() if path.name.startswith("tmp.")] == []
    shutil.rmtree(cache)


WATCHES = """
import sys
from pathlib import Path
from tests.faults.emitting import is_complete

cache, keys = Path(sys.argv[1]), int(sys.argv[2])
sys.stdin.read(1)
incomplete, complete = set(), set()
while len(complete) < keys:
    for path in cache.iterdir() if cache.exists() else ():
        if not path.name.startswith("tmp.") and path.name not in complete:
            (complete if is_complete(path) else incomplete).add(path.name)
print(len(incomplete), len(complete))
"""


def test_eviction_in_a_daemon_blocks_no_compile(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, "--store-objects", "5", "--store-free", "0")
    try:
        with daemon.pool() as pool:
            kernels = [pointwise(f"evicted_{number}") for number in range(12)]
            for kernel in kernels:
                assert pool.warm(kernel.name, kernel.source).result(timeout=120)
            while pool.status().counters["store_evicted"] < 7:
                pass
            assert pool.status().store_objects == 5
            assert pool.warm(kernels[0].name, kernels[0].source).result(timeout=120)
            assert pool.status().counters["jobs_compiled"] == 13
    finally:
        daemon.close()


def test_a_closed_store_is_no_error(tmp_path: Path) -> None:
    store = Store(tmp_path, Bounds(free=0))
    assert store.get(key(1)) is None
    assert not store.put(key(1), "1000", IDENTITY, stored(1))
    assert os.listdir(tmp_path) == []
