"""What was compiled, on disk: one file a job, checked on every read.

    STORE/objects/ab/abcdef....cpo  =  SHA-256 of the rest (32 bytes), then one frame: Contents, segments

A file is written beside its place and renamed. Nothing waits for the disk: what a power cut leaves damaged fails its
checksum, and one whose checksum does not hold is a miss and is removed. A store that can't be written costs its user
nothing but the reuse: compiles go on, and `errors` counts.
"""

import hashlib
import logging
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec

from compilepool.protocol.contents import DamagedContents, verify
from compilepool.protocol.errors import ProtocolError
from compilepool.protocol.frames import OPEN_LIMITS, FrameDecoder, encode_frame
from compilepool.protocol.messages import Contents

log = logging.getLogger(__name__)

_DIGEST = 32
_decode = msgspec.msgpack.Decoder(Contents).decode
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Stored:
    """The contents of one job with their segments."""

    contents: Contents
    segments: tuple[bytes, ...]


class Store:
    """A directory of results, for one daemon; methods block on the disk and may be called from any thread."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.errors = 0
        self.damaged = 0

    def __repr__(self) -> str:
        return f"<Store [{self.root} | damaged: {self.damaged} | errors: {self.errors}]>"

    def get(self, key: str) -> Stored | None:
        """What was stored for `key` (64 hexadecimal digits), or None."""
        path = self._path(key)
        try:
            return _parse(path.read_bytes())
        except FileNotFoundError:
            return None
        except DamagedContents as exc:
            log.warning("removed a damaged object: key=%s reason=%s", key, exc)
            self.damaged += 1
            path.unlink(missing_ok=True)
        except OSError as exc:
            self._failed("read", key, exc)
        return None

    def put(self, key: str, stored: Stored) -> None:
        """Publish; a failure is counted and logged, never raised."""
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _publish(path, _render(stored))
        except OSError as exc:
            self._failed("write", key, exc)

    def _path(self, key: str) -> Path:
        return self.root / "objects" / key[:2] / f"{key}.cpo"

    def _failed(self, what: str, key: str, exc: OSError) -> None:
        self.errors += 1
        log.warning("could not %s the store: key=%s error=%s", what, key, exc)


def _render(stored: Stored) -> bytes:
    body = b"".join(encode_frame(_encode(stored.contents), stored.segments))
    return hashlib.sha256(body).digest() + body


def _parse(raw: bytes) -> Stored:
    body = memoryview(raw)[_DIGEST:]
    if hashlib.sha256(body).digest() != raw[:_DIGEST]:
        raise DamagedContents("the file's checksum does not hold")
    try:
        (frame,) = FrameDecoder(OPEN_LIMITS).feed(body)
        stored = Stored(_decode(frame.header), frame.segments)
    except (ProtocolError, ValueError) as exc:
        raise DamagedContents(f"not an object of this version: {exc}") from exc
    verify(stored.contents, stored.segments)
    return stored


def _publish(path: Path, raw: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(raw)
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
