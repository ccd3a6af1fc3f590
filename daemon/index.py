"""What the store has, as a table: for bounds, eviction and lists; answers never come from here.

It can be made anew from the objects, so it is written without waiting for the disk, and thrown away when it is damaged.
"""

import errno
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from compilepool.protocol.messages import Contents, Identity

_COLUMNS = "key, owner, size, created, used, hits, pinned, kernel, target, fingerprint, units"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (
    key TEXT PRIMARY KEY, owner TEXT, size INTEGER, created REAL, used REAL, hits INTEGER, pinned INTEGER,
    kernel TEXT, target TEXT, fingerprint TEXT, units INTEGER) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_use ON objects (pinned, used);
CREATE INDEX IF NOT EXISTS by_user ON objects (owner, pinned, used);
"""
_VERSION = 2


# A disk that is full, read-only or broken, and descriptors that ran out: nothing is wrong with the table itself.
_OF_THE_DISK = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_CANTOPEN: errno.EIO,
}


class DamagedIndex(Exception):
    """The index can't be used; it is to be made anew."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One object: whose, how large (bytes), when made and last used (seconds since 1970), how often."""

    key: str
    owner: str
    size: int
    created: float
    used: float
    hits: int
    pinned: bool
    kernel: str
    target: str
    fingerprint: str
    units: int


class Index:
    """A table in one file, for one thread at once; raises DamagedIndex, and OSError for the disk's troubles."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=OFF")
            if self._one("PRAGMA user_version") not in (0, _VERSION) or self._one("PRAGMA quick_check") != "ok":
                raise DamagedIndex("it is of another version, or damaged")
            self._db.executescript(_SCHEMA)
            self._db.execute(f"PRAGMA user_version={_VERSION}")
        except sqlite3.Error as exc:
            raise _trouble(exc) from exc

    @staticmethod
    def remove(path: Path) -> None:
        """Throw it away."""
        for suffix in ("", "-wal", "-shm", "-journal"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)

    def close(self) -> None:
        """Write what is to be written."""
        self._db.close()

    def add(self, entries: Iterable[Entry]) -> None:
        """These are there now, or again."""
        marks = ", ".join("?" * len(_COLUMNS.split(",")))
        self._many(f"INSERT OR REPLACE INTO objects ({_COLUMNS}) VALUES ({marks})", map(astuple, entries))

    def discard(self, keys: Iterable[str]) -> None:
        """These are gone."""
        self._many("DELETE FROM objects WHERE key = ?", ((key,) for key in keys))

    def used(self, uses: Iterable[tuple[str, int, float]]) -> None:
        """These (key, how often, when last) were used."""
        rows = ((hits, when, key) for key, hits, when in uses)
        self._many("UPDATE objects SET hits = hits + ?, used = max(used, ?) WHERE key = ?", rows)

    def pin(self, keys: Iterable[str], *, pinned: bool) -> None:
        """These are never evicted, or again like others."""
        self._many("UPDATE objects SET pinned = ? WHERE key = ?", ((pinned, key) for key in keys))

    def pinned(self) -> int:
        """Bytes that are."""
        return int(self._one("SELECT coalesce(sum(size), 0) FROM objects WHERE pinned = 1"))

    def get(self, key: str) -> Entry | None:
        """One object."""
        return next(self._entries("WHERE key = ?", key), None)

    def oldest(self, most: int, owner: str | None = None) -> list[Entry]:
        """Those that were used longest ago and are not pinned; of one user, or of all."""
        if owner is None:
            return list(self._entries("WHERE pinned = 0 ORDER BY used LIMIT ?", most))
        return list(self._entries("WHERE owner = ? AND pinned = 0 ORDER BY used LIMIT ?", owner, most))

    def after(self, key: str, most: int, owner: str) -> list[Entry]:
        """A user's objects in the order of their keys, from this one on."""
        return list(self._entries("WHERE key > ? AND owner = ? ORDER BY key LIMIT ?", key, owner, most))

    def since(self, created: float) -> list[str]:
        """Keys of what was made since."""
        return [key for (key,) in self._rows("SELECT key FROM objects WHERE created >= ?", created)]

    def keys(self) -> set[str]:
        """All of them."""
        return {key for (key,) in self._rows("SELECT key FROM objects")}

    def totals(self) -> dict[str, tuple[int, int]]:
        """Objects and bytes of each user."""
        rows = self._rows("SELECT owner, count(*), sum(size) FROM objects GROUP BY owner")
        return {owner: (count, size) for owner, count, size in rows}

    def _entries(self, where: str, *values: object) -> Iterator[Entry]:
        for row in self._rows(f"SELECT {_COLUMNS} FROM objects {where}", *values):
            key, owner, size, created, used, hits, pinned, kernel, target, fingerprint, units = row
            yield Entry(key, owner, size, created, used, hits, bool(pinned), kernel, target, fingerprint, units)

    def _one(self, statement: str) -> Any:
        return self._db.execute(statement).fetchone()[0]

    def _rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as exc:
            raise _trouble(exc) from exc

    def _many(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        try:
            with self._db:
                self._db.execute("BEGIN")
                self._db.executemany(statement, rows)
        except sqlite3.Error as exc:
            raise _trouble(exc) from exc


def entry_of(key: str, size: int, created: float, owner: str, identity: Identity, contents: Contents) -> Entry:
    """An object that was just made."""
    return Entry(
        key=key,
        owner=owner,
        size=size,
        created=created,
        used=created,
        hits=0,
        pinned=False,
        kernel=identity.recipe.name,
        target=contents.target,
        fingerprint=identity.fingerprint,
        units=len(contents.units),
    )


def _trouble(error: sqlite3.Error) -> Exception:
    # The lowest byte is the kind; the rest says more.
    number = _OF_THE_DISK.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
    return DamagedIndex(str(error)) if number is None else OSError(number, f"the index: {error}")
