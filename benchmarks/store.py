"""The store as it grows: what a lookup, an insert and an eviction cost, and how long its index takes to be made anew.

    python -m benchmarks.store [--objects 100000] [--size 4096] [--json]

Synthetic objects; each row is measured over as many operations, so that the rows compare. "flat" is the last row over
the first.
"""

import argparse
import hashlib
import json
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from compilepool.daemon.bounds import Bounds
from compilepool.daemon.objects import Stored
from compilepool.daemon.store import Store
from compilepool.protocol.contents import checksum
from compilepool.protocol.messages import Contents, Cost, Identity, Recipe, Unit

SAMPLES = 2000
STEPS = 10


@dataclass(frozen=True, slots=True)
class Row:
    """At so many objects, microseconds of one operation (median); MiB of the process."""

    objects: int
    insert: float
    hit: float
    miss: float
    rss: int


def key(number: int) -> str:
    """Keys are digests: spread over all directories."""
    return hashlib.sha256(str(number).encode()).hexdigest()


def stored(number: int, size: int) -> Stored:
    """An object of about this size."""
    segments = (number.to_bytes(8, "big") * (size // 32), number.to_bytes(8, "big") * (size // 16), b"{}")
    unit = Unit("XBLOCK: 1024", "0" * 64, "D" * 52, ["k.cubin", "k.json"])
    return Stored(Contents([unit], [], [checksum(part) for part in segments], Cost(1.0, 1.0, 1), "cuda:90"), segments)


def main() -> None:
    """Grow, evict, and make the index anew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="compilepool-store-") as folder:
        root = Path(folder) / "store"
        store = Store(root, Bounds(free=0))
        store.open()
        store.recover()
        rows = [_step(store, options.objects // STEPS, step, options.size) for step in range(STEPS)]
        evicting = _evict(store, options.objects, options.size)
        store.close()
        rebuilt = _rebuild(root)
    if options.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "evicting": evicting, "rebuild": rebuilt}))
        return
    print(f"{'objects':>8} {'insert':>9} {'hit':>9} {'miss':>9} {'memory':>9}")
    for row in rows:
        print(f"{row.objects:>8} {row.insert:>6.0f} us {row.hit:>6.0f} us {row.miss:>6.0f} us {row.rss:>5} MiB")
    first, last = rows[0], rows[-1]
    flat = ", ".join(f"{name} {getattr(last, name) / getattr(first, name):.2f}" for name in ("insert", "hit", "miss"))
    print(f"flat: {flat}; an insert that evicts takes {evicting / last.insert:.2f} of one that does not")
    print(f"the index of {options.objects} objects made anew in {rebuilt:.1f} s")


def _step(store: Store, count: int, step: int, size: int) -> Row:
    identity = Identity(Recipe("kernel", {}, {}), "ab" * 32, "toolchain")
    numbers = range(step * count, (step + 1) * count)
    insert = _median(lambda n: store.put(key(n), "1000", identity, stored(n, size)), list(numbers))
    known = random.Random(step).choices(range((step + 1) * count), k=SAMPLES)
    hit = _median(lambda n: store.get(key(n)), known)
    miss = _median(lambda n: store.get(key(-1 - n)), known)
    return Row((step + 1) * count, insert, hit, miss, _rss())


def _evict(store: Store, objects: int, size: int) -> float:
    identity = Identity(Recipe("kernel", {}, {}), "ab" * 32, "toolchain")
    store.bounds = Bounds(free=0, objects=objects)
    numbers = range(objects, objects + objects // STEPS)
    taken = [_timed(lambda n: store.put(key(n), "1000", identity, stored(n, size)), n) for n in numbers]
    # The mean: most inserts evict nothing, and now and then one evicts for many.
    return 1e6 * statistics.fmean(taken)


def _rebuild(root: Path) -> float:
    for path in root.glob("index.db*"):
        path.unlink()
    started = time.monotonic()
    store = Store(root, Bounds(free=0))
    store.open()
    store.recover()
    store.close()
    return time.monotonic() - started


def _median(operation: Callable[[int], object], numbers: list[int]) -> float:
    return 1e6 * statistics.median(_timed(operation, number) for number in numbers)


def _timed(operation: Callable[[int], object], number: int) -> float:
    started = time.perf_counter()
    operation(number)
    return time.perf_counter() - started


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20


if __name__ == "__main__":
    main()
