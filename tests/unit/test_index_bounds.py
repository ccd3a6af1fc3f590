"""What the store keeps, what it lets go, and what it makes of damage; on a real disk, with a clock of the test's."""

import contextlib
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from compilepool.daemon.bounds import Bounds
from compilepool.daemon.disk import StoreInUse
from compilepool.daemon.index import Index
from compilepool.daemon.objects import Stored, parse, render
from compilepool.daemon.store import Store
from compilepool.protocol.contents import DamagedContents, checksum
from compilepool.protocol.messages import Contents, Cost, Identity, Recipe, Unit

IDENTITY = Identity(Recipe("kernel", {}, {}), "cd" * 32, "toolchain")
SIZE = 1000


def key(number: int) -> str:
    return f"{number:064x}"


def stored(number: int = 0, size: int = SIZE, files: tuple[str, ...] = ("k.cubin", "k.json")) -> Stored:
    segments = (b"pickle", number.to_bytes(4, "big") * (size // 4), b'{"name": "k"}' * 3)[: len(files) + 1]
    unit = Unit("XBLOCK=1", "0" * 64, "D" * 52, list(files))
    checksums = [checksum(segment) for segment in segments]
    return Stored(Contents([unit], [], checksums, Cost(1.0, 0.9, 1), "cuda:90"), segments)


OBJECT = len(render(key(0), "1000", IDENTITY, stored(), 0.0))


class Clock:
    """Says what the test says."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def opened(root: Path, **bounds: Any) -> Store:
    store = Store(root, Bounds(**{"free": 0, **bounds}), Clock())
    store.open()
    store.recover()
    return store


def put(store: Store, *numbers: int, owner: str = "1000") -> None:
    for number in numbers:
        assert store.put(key(number), owner, IDENTITY, stored(number))


def there(store: Store) -> list[int]:
    return [number for number in range(100) if store.get(key(number)) is not None]


class TestBounds:
    def test_what_was_used_longest_ago_makes_room(self, tmp_path: Path) -> None:
        store = opened(tmp_path, size=4 * OBJECT)
        put(store, 1, 2, 3)
        assert store.get(key(1)) == stored(1)
        put(store, 4, 5)
        assert there(store) == [1, 4, 5]
        assert store.evicted == 2
        assert store.total == (3, 3 * OBJECT)

    def test_so_many_and_no_more(self, tmp_path: Path) -> None:
        store = opened(tmp_path, objects=3)
        put(store, *range(10))
        assert there(store) == [7, 8, 9]

    def test_a_users_quota_costs_nobody_else(self, tmp_path: Path) -> None:
        store = opened(tmp_path, user=2 * OBJECT + 100)
        put(store, 1, owner="1")
        put(store, 2, 3, 4, 5, owner="2")
        assert [entry.key for entry in store.entries("1", "", 10)] == [key(1)]
        assert [entry.key for entry in store.entries("2", "", 10)] == [key(4), key(5)]

    def test_what_is_pinned_stays(self, tmp_path: Path) -> None:
        store = opened(tmp_path, objects=2)
        put(store, 1, 2)
        assert [entry.key for entry in store.pin([key(1), key(99)], "1000", pinned=True)] == [key(1)]
        put(store, 3, 4)
        assert there(store) == [1, 4]
        store.pin([key(1), key(4)], "1000", pinned=True)
        assert not store.put(key(5), "1000", IDENTITY, stored(5))
        assert "nothing left to evict" in store.trouble
        store.pin([key(1)], "1000", pinned=False)
        put(store, 6)
        assert store.trouble == ""

    def test_the_disk_is_not_filled(self, tmp_path: Path) -> None:
        store = opened(tmp_path, free=1 << 60)
        assert not store.put(key(1), "1000", IDENTITY, stored(1))
        assert "room" in store.trouble

    def test_whoever_reads_what_goes_reads_on(self, tmp_path: Path) -> None:
        """Readers and a writer that evicts, as fast as they can: a read is a miss or whole."""
        store = opened(tmp_path, objects=5)
        wrong: list[object] = []
        done = threading.Event()

        def read() -> None:
            while not done.is_set():
                for number in range(20):
                    found = store.get(key(number))
                    if found is not None and found != stored(number):
                        wrong.append(found)

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for _ in range(20):
            put(store, *range(20))
        done.set()
        for reader in readers:
            reader.join(timeout=30)
        assert wrong == []
        assert (store.damaged, store.errors) == (0, 0)

    def test_hits_are_on_record(self, tmp_path: Path) -> None:
        store = opened(tmp_path)
        put(store, 1)
        for _ in range(3):
            store.get(key(1))
        (entry,) = store.entries("1000", "", 10)
        assert (entry.hits, entry.kernel, entry.target, entry.units) == (3, "kernel", "cuda:90", 1)

    def test_one_user_manages_only_what_is_theirs(self, tmp_path: Path) -> None:
        store = opened(tmp_path)
        put(store, 1)
        assert store.remove([key(1)], "1001") == []
        assert store.read(key(1), "1001") is None
        assert [entry.key for entry in store.remove([key(1)], "1000")] == [key(1)]
        assert there(store) == []
        assert store.total == (0, 0)


class TestLife:
    def test_a_second_daemon_is_refused_until_the_first_is_gone(self, tmp_path: Path) -> None:
        first = opened(tmp_path)
        with pytest.raises(StoreInUse, match="another daemon uses the store .*--store"):
            Store(tmp_path).open()
        first.close()
        opened(tmp_path).close()

    def test_after_it_is_closed_everything_is_a_miss(self, tmp_path: Path) -> None:
        store = opened(tmp_path)
        put(store, 1)
        store.close()
        assert store.get(key(1)) is None
        assert not store.put(key(2), "1000", IDENTITY, stored(2))
        store.close()

    @pytest.mark.parametrize("damage", [b"", b"no database", None])
    def test_an_index_that_is_damaged_or_gone_is_made_anew(self, tmp_path: Path, damage: bytes | None) -> None:
        store = opened(tmp_path)
        put(store, 1, 2, 3)
        store.close()
        for path in tmp_path.glob("index.db*"):
            path.unlink()
        if damage is not None:
            (tmp_path / "index.db").write_bytes(damage)
        again = opened(tmp_path, objects=3)
        assert again.total == (3, 3 * OBJECT)
        put(again, 4)
        assert again.total[0] == 3

    def test_an_index_that_is_damaged_meanwhile_is_made_anew(self, tmp_path: Path) -> None:
        store = opened(tmp_path)
        put(store, 1, 2)
        assert store._index is not None
        store._index._db.execute("DROP TABLE objects")
        put(store, 3)
        assert store.total == (3, 3 * OBJECT)

    def test_what_a_crash_left_out_of_the_index_is_found(self, tmp_path: Path) -> None:
        store = opened(tmp_path)
        put(store, 1, 2)
        store.close()
        index = Index(tmp_path / "index.db")
        index.discard([key(1)])
        index.close()
        store._path(key(2)).unlink()
        (tmp_path / "objects" / "ff").mkdir()
        (tmp_path / "objects" / "ff" / f"{'f' * 64}.cpo").write_bytes(b"no object")
        (tmp_path / "new").mkdir(exist_ok=True)
        (tmp_path / "new" / "17").write_bytes(b"half an object")
        again = opened(tmp_path)
        assert [entry.key for entry in again.entries("1000", "", 10)] == [key(1)]
        assert list((tmp_path / "new").iterdir()) == []
        assert again.damaged == 1

    def test_after_a_power_cut_what_was_made_last_is_checked(self, tmp_path: Path) -> None:
        store = opened(tmp_path)
        put(store, 1, 2)
        path = store._path(key(2))
        raw = path.read_bytes()
        path.write_bytes(raw[:100] + bytes(len(raw) - 100))
        session = json.loads((tmp_path / "session").read_text())
        assert store._index is not None
        store._index.close()
        os.close(store._lock or 0)
        (tmp_path / "session").write_text(json.dumps({**session, "boot": "another"}))
        again = opened(tmp_path)
        assert again.damaged == 1
        assert [entry.key for entry in again.entries("1000", "", 10)] == [key(1)]

    def test_an_object_under_another_key_is_none(self, tmp_path: Path) -> None:
        store = opened(tmp_path)
        put(store, 1)
        store._path(key(2)).parent.mkdir(exist_ok=True)
        store._path(key(1)).rename(store._path(key(2)))
        assert store.get(key(2)) is None
        assert store.damaged == 1


IR = ("k.cubin", "k.ttir")


@given(st.data())
@settings(max_examples=300)
def test_every_damage_to_an_object_is_seen(data: st.DataObject) -> None:
    whole = render(key(1), "1000", IDENTITY, stored(1, 64, IR), 5.0)
    assert parse(whole)[1] == stored(1, 64, IR)
    cut = data.draw(st.integers(0, len(whole)))
    flip = data.draw(st.integers(0, len(whole) - 1))
    bit = data.draw(st.integers(0, 7))
    with pytest.raises(DamagedContents):
        parse(whole[:cut] if cut < len(whole) else whole + b"x")
    # Some bits of a compressed segment are padding: they may differ, what is in it may not.
    with contextlib.suppress(DamagedContents):
        flipped = parse(whole[:flip] + bytes([whole[flip] ^ 1 << bit]) + whole[flip + 1 :])
        assert flipped[1] == stored(1, 64, IR)
        assert IR[1].endswith(".ttir") and flip >= whole.index(b"x\x01")
