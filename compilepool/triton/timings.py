"""What was measured: the time of every config, for one kernel, its key values, a device and its driver, a toolchain.

    this process  -->  a file of JSON on disk, for people too  -->  the daemon, for every process of this user
        ^                                                                 |
        '------------------ what others have measured --------------------'

Times are kept config by config: one that is added has to be measured, and the others don't. They are kept where
COMPILEPOOL_TUNING_DIR says, or in ~/.cache/compilepool/tuning.
"""

import contextlib
import fcntl
import fnmatch
import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from compilepool.client import Pool
from compilepool.emit import write_file
from compilepool.protocol import messages as m
from compilepool.protocol.contents import DamagedContents, checksum, verify
from compilepool.protocol.errors import CompilePoolError

VARIABLE = "COMPILEPOOL_TUNING_DIR"
FORMAT = 1
# How long one process waits for another that measures the same: a hundred configs of a slow kernel.
WAIT_SECONDS = 120.0
_POLL_SECONDS = 0.05


class Subject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was measured, as far as it decides how long it takes.

    kernel, content: name, and a hash of its text and all that it calls (`worker.content`)
    key: the values by which configs are chosen, and the types of arguments
    device, driver: model and version, '' where there is none
    toolchain: Triton's version
    """

    kernel: str
    content: str
    key: list[str]
    device: str
    driver: str
    toolchain: str

    @property
    def digest(self) -> str:
        """SHA-256 of all of it, in hexadecimal."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()

    @property
    def identity(self) -> m.Identity:
        """Under which the daemon keeps its times."""
        return m.Identity(m.Recipe(self.kernel, {}, {"timings": FORMAT}), self.digest, "timings")


class Timings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The times of a subject's configs: milliseconds by config; None: it does not fit, or can't be compiled."""

    subject: Subject
    milliseconds: dict[str, float | None]
    format: int = FORMAT

    @property
    def best(self) -> str | None:
        """The fastest config."""
        known = {config: taken for config, taken in self.milliseconds.items() if taken is not None}
        return min(known, key=lambda config: known[config]) if known else None


class BadTimings(ValueError):
    """A file that holds no timings; the message says where and why."""


@dataclass(frozen=True)
class TimingStore:
    """Timings on disk, and in the daemon if there is one."""

    root: Path
    pool: Pool | None = None

    def load(self, subject: Subject) -> dict[str, float | None]:
        """What is known of this subject, wherever it is; what this host's disk says comes first."""
        return {**self._from_daemon(subject), **self._from_disk(subject)}

    def add(self, subject: Subject, measured: Mapping[str, float | None]) -> dict[str, float | None]:
        """Keep times, beside those that are known; all of them."""
        with self._locked(subject):
            merged = {**self._from_disk(subject), **measured}
            with contextlib.suppress(OSError):
                write_file(self._path(subject), encode(Timings(subject, merged)))
        self._to_daemon(Timings(subject, {**self._from_daemon(subject), **merged}))
        return merged

    @contextlib.contextmanager
    def measuring(self, subject: Subject) -> Iterator[None]:
        """Alone with this subject: whoever else would measure it on this host waits, and finds the times."""
        with self._locked(subject, "measuring"):
            yield

    def all(self, pattern: str = "*") -> Iterator[Timings]:
        """What is on disk of kernels whose names match; raises BadTimings."""
        for path in sorted(self.root.glob("*.json")):
            found = decode(path.read_bytes(), str(path))
            if fnmatch.fnmatchcase(found.subject.kernel, pattern):
                yield found

    def forget(self, subject: Subject) -> None:
        """Remove what is on disk."""
        self._path(subject).unlink(missing_ok=True)

    def _path(self, subject: Subject) -> Path:
        return self.root / f"{subject.kernel[:100]}-{subject.digest[:16]}.json"

    def _from_disk(self, subject: Subject) -> dict[str, float | None]:
        try:
            found = decode(self._path(subject).read_bytes(), str(self._path(subject)))
        except (OSError, BadTimings):
            return {}
        return found.milliseconds if found.subject == subject else {}

    def _from_daemon(self, subject: Subject) -> dict[str, float | None]:
        if self.pool is None:
            return {}
        try:
            answer, segments = self.pool.find_object(subject.identity)
            verify(answer.contents, segments)
            found = decode(segments[0], "the daemon")
        except (CompilePoolError, DamagedContents, BadTimings, IndexError):
            return {}
        return found.milliseconds if found.subject == subject else {}

    def _to_daemon(self, timings: Timings) -> None:
        raw = encode(timings)
        contents = m.Contents([], [], [checksum(raw)], m.Cost(0.0, 0.0, 0), timings.subject.device)
        if self.pool is not None:
            with contextlib.suppress(CompilePoolError):
                self.pool.add_object(timings.subject.identity, contents, (raw,))

    @contextlib.contextmanager
    def _locked(self, subject: Subject, what: str = "writing") -> Iterator[None]:
        """One process at a time; where it can't be locked, or for too long, everybody goes on."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            path = self._path(subject).with_suffix(f".{what}")
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            yield
            return
        try:
            _lock(descriptor, time.monotonic() + WAIT_SECONDS)
            yield
        finally:
            # A fork has the descriptor too, and would hold the lock for as long as it lives.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _lock(descriptor: int, deadline: float) -> None:
    while time.monotonic() < deadline:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_POLL_SECONDS)
        except OSError:
            return
        else:
            return


def encode(timings: Timings) -> bytes:
    """As JSON for people and programs, the fastest config first."""
    slowest = float("inf")
    ordered = sorted(timings.milliseconds.items(), key=lambda item: slowest if item[1] is None else item[1])
    raw = msgspec.json.encode(msgspec.structs.replace(timings, milliseconds=dict(ordered)))
    return msgspec.json.format(raw, indent=2)


def decode(raw: bytes, where: str) -> Timings:
    """The timings in a file; raises BadTimings."""
    try:
        found = msgspec.json.decode(raw, type=Timings)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise BadTimings(f"{where} holds no timings: {exc}") from exc
    if found.format != FORMAT:
        raise BadTimings(f"{where} is of format {found.format}; this version reads {FORMAT}")
    return found


def encode_all(several: Iterable[Timings]) -> bytes:
    """Timings of several subjects, as JSON."""
    return b"[\n" + b",\n".join(encode(timings) for timings in several) + b"\n]\n"


def decode_all(raw: bytes, where: str) -> list[Timings]:
    """What `encode_all` has written; raises BadTimings."""
    try:
        parts = msgspec.json.decode(raw, type=list[msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise BadTimings(f"{where} holds no list of timings: {exc}") from exc
    return [decode(bytes(part), f"{where}, entry {number}") for number, part in enumerate(parts, 1)]


def directory(environ: Mapping[str, str]) -> Path:
    """Where timings are kept."""
    named = environ.get(VARIABLE)
    cache = environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(named) if named else Path(cache) / "compilepool" / "tuning"
