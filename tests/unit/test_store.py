from pathlib import Path

import pytest

from compilepool.daemon.bounds import Bounds
from compilepool.daemon.objects import Stored
from compilepool.daemon.store import Store
from compilepool.protocol.contents import DamagedContents, checksum, verify
from compilepool.protocol.messages import Contents, Cost, Identity, Recipe, Unit

KEY = "ab" * 32
IDENTITY = Identity(Recipe("kernel", {}, {}), "cd" * 32, "toolchain")
SEGMENTS = (b"pickle", b"cubin", b"{}")


def contents(directory: str = "D" * 52, files: tuple[str, ...] = ("k.cubin", "k.json")) -> Contents:
    unit = Unit("XBLOCK=1", "0" * 64, directory, list(files))
    return Contents([unit], [], [checksum(s) for s in SEGMENTS], Cost(1.0, 0.9, 1 << 20))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = Store(tmp_path / "store", Bounds(free=0))
    opened.open()
    return opened


def test_what_was_put_comes_back_after_a_restart(store: Store) -> None:
    store.put(KEY, "1000", IDENTITY, Stored(contents(), SEGMENTS))
    store.close()
    again = Store(store.root)
    again.open()
    assert again.get(KEY) == Stored(contents(), SEGMENTS)
    again.close()


def test_an_unknown_key_is_a_miss(store: Store) -> None:
    assert store.get(KEY) is None
    assert (store.damaged, store.errors) == (0, 0)


def test_every_damage_is_a_miss_and_removed(store: Store) -> None:
    store.put(KEY, "1000", IDENTITY, Stored(contents(), SEGMENTS))
    (path,) = store.root.rglob("*.cpo")
    whole = path.read_bytes()
    damaged = [whole[:cut] for cut in range(0, len(whole), 7)]
    damaged += [whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :] for at in range(0, len(whole), 7)]
    for raw in damaged:
        path.write_bytes(raw)
        assert store.get(KEY) is None
        assert not path.exists()
    assert store.damaged == len(damaged)


def test_a_store_that_cant_be_written_counts_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file where the directory should be")
    store = Store(tmp_path / "store")
    store.open()
    store.put(KEY, "1000", IDENTITY, Stored(contents(), SEGMENTS))
    assert store.errors == 1
    assert store.get(KEY) is None


def test_nothing_half_written_is_left(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    store.put(KEY, "1000", IDENTITY, Stored(contents(), SEGMENTS))
    assert store.errors == 1
    assert [path for folder in ("objects", "new") for path in (store.root / folder).rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("directory", ["../../etc", "/etc", "D", "D" * 52 + "/..", ""])
def test_a_directory_that_is_no_cache_key_is_refused(directory: str) -> None:
    with pytest.raises(DamagedContents, match="cache directory"):
        verify(contents(directory), SEGMENTS)


@pytest.mark.parametrize("name", ["../k.cubin", "/etc/passwd", ".hidden", "a/b", "", "a\0b", "x" * 300])
def test_a_file_that_is_no_plain_name_is_refused(name: str) -> None:
    with pytest.raises(DamagedContents, match="cached file"):
        verify(contents(files=(name, "k.json")), SEGMENTS)


def test_a_swapped_segment_is_refused() -> None:
    with pytest.raises(DamagedContents, match="segment 1"):
        verify(contents(), (b"pickle", b"CUBIN", b"{}"))
