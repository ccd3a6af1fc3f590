"""What was compiled, on disk: objects that prove themselves (`objects`), an index of them (`index`), and bounds.

    STORE/lock                      held by the one daemon that uses it
    STORE/session                   while one does: the host's boot, and since when
    STORE/objects/ab/abcdef....cpo  an object, by its key
    STORE/new/                      what is being written
    STORE/index.db                  can be made anew

Opening takes the lock and removes what was being written. `recover`, behind everybody's back, brings the index in line
with the objects that are there, and, when the daemon before did not close and the host was started since, checks every
object that it had made: what a power cut leaves may have the right name and wrong bytes.

An answer is read from its object alone, and checked; one that is damaged is a miss, is removed and counted. Before an
object is written, those that were used longest ago make room for it, if they are not pinned: of its user, when that has
more than its quota, or of all. Whoever is reading one that goes reads on. A store that can't be written (full,
read-only, out of descriptors) costs its user nothing but the reuse: compiles go on, and `trouble` says what is wrong.
"""

import contextlib
import errno
import itertools
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from compilepool.daemon.bounds import Bounds, TooManyPinned
from compilepool.daemon.disk import boot_id, free, lock, network_filesystem, read_cached
from compilepool.daemon.index import DamagedIndex, Entry, Index, entry_of
from compilepool.daemon.objects import Sealed, Stored, parse, publish, read_header, render
from compilepool.protocol.contents import DamagedContents
from compilepool.protocol.messages import Identity

log = logging.getLogger(__name__)
T = TypeVar("T")

# What is evicted at once, beyond what is needed: a share of the bound.
_SLACK = 0.02
_BATCH = 200
_SUFFIX = ".cpo"
# What a change of the index may take on a full disk: some pages, and its log.
_INDEX_BYTES = 128 << 10


class Store:
    """A directory of results, for one daemon; methods block on the disk and may be called from any thread."""

    def __init__(self, root: Path, bounds: Bounds | None = None, clock: Callable[[], float] = time.time) -> None:
        self.root = root
        self.bounds = bounds or Bounds()
        self.trouble = ""
        self.errors = 0
        self.damaged = 0
        self.evicted = 0
        self._clock = clock
        self._lock: int | None = None
        self._since: float | None = None
        self._index: Index | None = None
        self._changing = threading.RLock()
        self._counting = threading.Lock()
        self._totals: dict[str, tuple[int, int]] = {}
        self._uses: dict[str, tuple[int, float]] = {}
        self._names = itertools.count()

    def __repr__(self) -> str:
        count, size = self.total
        state = self.trouble or "well"
        return f"<Store [{self.root} | {count} objects, {size} bytes | damaged: {self.damaged} | {state}]>"

    @property
    def total(self) -> tuple[int, int]:
        """Objects and bytes that are kept."""
        totals = list(self._totals.values())
        return sum(count for count, _ in totals), sum(size for _, size in totals)

    def total_of(self, owner: str) -> tuple[int, int]:
        """Objects and bytes of one owner."""
        return self._totals.get(owner, (0, 0))

    # ---- life

    def open(self, patience: float = 0.0) -> None:
        """Take it, waiting so many seconds for whoever has it; one that can't be written stays closed.

        Raises StoreInUse.
        """
        try:
            (self.root / "objects").mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = lock(self.root / "lock", patience)
            shutil.rmtree(self.root / "new", ignore_errors=True)
            (self.root / "new").mkdir(mode=0o700)
            self._since = self._unclean_since()
            session = {"boot": boot_id(), "since": self._since or self._clock()}
            (self.root / "session").write_text(json.dumps(session))
        except OSError as exc:
            self._failed("use", self.root.name, exc)
            self.close()
            return
        if kind := network_filesystem(self.root):
            log.warning("the store %s is on %s, a network filesystem: use a local disk (--store)", self.root, kind)

    def close(self) -> None:
        """Give it up: from here on everything is a miss, and nothing is kept."""
        with self._changing:
            if self._index is not None:
                self._note_uses()
                self._index.close()
                self._index = None
            if self._lock is not None:
                (self.root / "session").unlink(missing_ok=True)
                os.close(self._lock)
                self._lock = None

    def recover(self) -> None:
        """Bring the index in line with the objects, and check those that a power cut may have damaged."""
        with self._changing:
            if self._lock is None:
                return
            try:
                suspects = self._with_index(self._reconcile)
            except OSError as exc:
                self._failed("recover", self.root.name, exc)
                return
        for key in suspects or ():
            self._read(key)

    # ---- answers

    def get(self, key: str) -> Stored | None:
        """What was stored for `key` (64 hexadecimal digits), or None."""
        found = self._read(key)
        if found is None:
            return None
        self._used(key)
        return found[1]

    def glance(self, key: str) -> Stored | None:
        """The same, if memory has it: never waits for the disk, or for who changes the store."""
        raw = read_cached(self._path(key)) if self._lock is not None else None
        if raw is None:
            return None
        try:
            sealed, stored = parse(raw)
        except DamagedContents:
            # `get` removes it.
            return None
        if sealed.key != key:
            return None
        self._used(key)
        return stored

    def _used(self, key: str) -> None:
        with self._counting:
            hits, _ = self._uses.get(key, (0, 0.0))
            self._uses[key] = hits + 1, self._clock()

    def read(self, key: str, owner: str) -> tuple[Sealed, Stored] | None:
        """An object of this user's, with what it is about; to look at it is no use of it."""
        found = self._read(key)
        return found if found is not None and found[0].owner == owner else None

    def put(self, key: str, owner: str, identity: Identity, stored: Stored) -> bool:
        """Publish; whether it is kept. A failure is counted and logged, never raised."""
        now = self._clock()
        raw = render(key, owner, identity, stored, now)
        with self._changing:
            if self._lock is None:
                return False
            try:
                self._make_room(owner, len(raw))
                self._publish(key, raw, entry_of(key, len(raw), now, owner, identity, stored.contents))
            except OSError as exc:
                self._failed("write", key, exc)
                return False
            self.trouble = ""
            return True

    def _publish(self, key: str, raw: bytes, entry: Entry) -> None:
        """Write the object and its line in the index; where the disk is full, what is old makes room for both."""
        for last in (False, True):
            try:
                publish(raw, self._path(key), self.root / "new" / str(next(self._names)))
                self._with_index(lambda index: self._add(index, [entry]))
            except OSError as exc:
                self._path(key).unlink(missing_ok=True)
                if last or exc.errno != errno.ENOSPC:
                    raise
                self._evict(2 * len(raw) + _INDEX_BYTES, 0, None)
            else:
                return

    # ---- administration

    def entries(self, owner: str, after: str, most: int) -> list[Entry]:
        """A user's objects in the order of their keys, those after this one."""
        with self._changing:
            self._note_uses()
            return self._with_index(lambda index: index.after(after, most, owner)) or []

    def pin(self, keys: Iterable[str], owner: str, *, pinned: bool) -> list[Entry]:
        """Never evict these, or evict them again like others; those that are there.

        Raises TooManyPinned: half of the store is for what is not pinned, whoever pins.
        """
        with self._changing:
            mine = self._mine(keys, owner)
            more = sum(entry.size for entry in mine if pinned and not entry.pinned)
            if more and more + (self._with_index(Index.pinned) or 0) > self.bounds.size // 2:
                raise TooManyPinned(f"at most half of the store ({self.bounds.size // 2} bytes) can be pinned")
            self._with_index(lambda index: index.pin([entry.key for entry in mine], pinned=pinned))
            return mine

    def remove(self, keys: Iterable[str], owner: str) -> list[Entry]:
        """Throw these away; those that were there."""
        with self._changing:
            mine = self._mine(keys, owner)
            self._discard(mine)
            return mine

    def verify(self, keys: Iterable[str], owner: str) -> list[Entry]:
        """Read these; those that were damaged, and are gone."""
        with self._changing:
            mine = self._mine(keys, owner)
        return [entry for entry in mine if self._read(entry.key) is None]

    def _mine(self, keys: Iterable[str], owner: str) -> list[Entry]:
        found = self._with_index(lambda index: [index.get(key) for key in keys]) or []
        return [entry for entry in found if entry is not None and entry.owner == owner]

    # ---- files

    def _path(self, key: str) -> Path:
        return self.root / "objects" / key[:2] / f"{key}{_SUFFIX}"

    def _read(self, key: str) -> tuple[Sealed, Stored] | None:
        if self._lock is None:
            return None
        path = self._path(key)
        try:
            raw = path.read_bytes()
            sealed, stored = parse(raw)
            if sealed.key != key:
                raise DamagedContents(f"it is the object of another key, {sealed.key}")
        except FileNotFoundError:
            return None
        except DamagedContents as exc:
            log.warning("removed a damaged object: key=%s reason=%s", key, exc)
            self.damaged += 1
            with self._changing, contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
                self._with_index(lambda index: self._forget(index, [key]))
        except OSError as exc:
            self._failed("read", key, exc)
        else:
            return sealed, stored
        return None

    def _failed(self, what: str, key: str, exc: OSError) -> None:
        self.errors += 1
        self.trouble = f"could not {what} it: {exc}"
        log.warning("could not %s the store: key=%s error=%s", what, key, exc)

    # ---- room

    def _make_room(self, owner: str, size: int) -> None:
        """Evict until an object of so many bytes fits; raises OSError when it can't."""
        bounds, ours = self.bounds, self._totals.get(owner, (0, 0))
        if (most := bounds.of(owner)) is not None and ours[1] + size > most:
            self._evict(ours[1] + size - _slackened(most), 0, owner)
        count, total = self.total
        if total + size > bounds.size or count + 1 > bounds.objects:
            self._evict(total + size - _slackened(bounds.size), count + 1 - _slackened(bounds.objects), None)
        while free(self.root) - size < bounds.free:
            self._evict(size, 0, None)

    def _evict(self, size: int, count: int, owner: str | None) -> None:
        """Throw away what was used longest ago, until so many bytes and objects are gone."""
        self._note_uses()
        while size > 0 or count > 0:
            victims = []
            for entry in self._with_index(lambda index: index.oldest(_BATCH, owner)) or []:
                if size <= 0 and count <= 0:
                    break
                victims.append(entry)
                size, count = size - entry.size, count - 1
            if not victims:
                raise OSError(errno.ENOSPC, "there is no room, and nothing left to evict")
            self._discard(victims)
            self.evicted += len(victims)

    def _discard(self, entries: list[Entry]) -> None:
        for entry in entries:
            self._path(entry.key).unlink(missing_ok=True)
        self._with_index(lambda index: self._forget(index, [entry.key for entry in entries]))

    # ---- index

    def _with_index(self, use: Callable[[Index], T]) -> T | None:
        """What `use` says; an index that is damaged is made anew first. None when there can be none."""
        if self._lock is None:
            return None
        for _ in range(2):
            try:
                if self._index is None:
                    self._index = Index(self.root / "index.db")
                    self._totals = self._index.totals()
                return use(self._index)
            except DamagedIndex as exc:
                log.warning("the store's index is made anew: %s", exc)
                self._index = None
                Index.remove(self.root / "index.db")
                self._index = self._remade()
        raise OSError(errno.EIO, "the index can't be made anew")

    def _remade(self) -> Index | None:
        try:
            index = Index(self.root / "index.db")
            self._totals = {}
            self._reconcile(index)
        except DamagedIndex:
            return None
        return index

    def _reconcile(self, index: Index) -> list[str]:
        """Let it have what is there, and not what is not; keys of the objects to be checked."""
        known, there = index.keys(), dict(self._objects())
        index.discard(known - there.keys())
        new = (self._described(key, there[key]) for key in there.keys() - known)
        index.add(entry for entry in new if entry is not None)
        self._totals = index.totals()
        return index.since(self._since) if self._since is not None else []

    def _objects(self) -> Iterator[tuple[str, Path]]:
        for folder in os.scandir(self.root / "objects"):
            if folder.is_dir(follow_symlinks=False):
                for file in os.scandir(folder):
                    if file.name.endswith(_SUFFIX):
                        yield file.name.removesuffix(_SUFFIX), Path(file.path)

    def _described(self, key: str, path: Path) -> Entry | None:
        try:
            sealed, size = read_header(path), path.stat().st_size
        except (OSError, DamagedContents):
            self.damaged += 1
            path.unlink(missing_ok=True)
            return None
        return entry_of(key, size, sealed.created, sealed.owner, sealed.identity, sealed.contents)

    def _add(self, index: Index, entries: list[Entry]) -> None:
        for entry in entries:
            before = index.get(entry.key)
            self._count(entry.owner, 1, entry.size)
            if before is not None:
                self._count(before.owner, -1, -before.size)
        index.add(entries)

    def _forget(self, index: Index, keys: list[str]) -> None:
        for key in keys:
            self._uses.pop(key, None)
            if (entry := index.get(key)) is not None:
                self._count(entry.owner, -1, -entry.size)
        index.discard(keys)

    def _count(self, owner: str, count: int, size: int) -> None:
        before = self._totals.get(owner, (0, 0))
        self._totals[owner] = before[0] + count, before[1] + size

    def _note_uses(self) -> None:
        with self._counting:
            uses, self._uses = self._uses, {}
        if uses:
            # Lost where the disk takes nothing: then it is only less known what was used last.
            with contextlib.suppress(OSError):
                self._with_index(lambda index: index.used((key, hits, when) for key, (hits, when) in uses.items()))

    # ---- unclean ends

    def _unclean_since(self) -> float | None:
        """Since when objects may be damaged: a daemon that did not close made them before this boot of the host."""
        try:
            session = json.loads((self.root / "session").read_text())
            return float(session["since"]) if session["boot"] != boot_id() else None
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            # The file itself is damaged.
            return 0.0


def _slackened(bound: int) -> int:
    return bound - int(bound * _SLACK)
