"""A bundle's file: an uncompressed tar that any tool lists, with a manifest first and then the objects.

    manifest.json          format, toolchain, targets, and of each object: kernel, target, units, size, SHA-256
    objects/SHA256         one frame: its identity and contents, and the segments

The same objects give the same bytes: objects are in the order of kernel and checksum, and nothing tells who packed
them, where or when. Both ends hold one object at a time. Nothing that a bundle says is trusted: a member has to be a
plain file that the manifest names, of its size and checksum; and what is in it is checked as an answer is.
"""

import hashlib
import io
import os
import re
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import msgspec

from compilepool.bundle.toolchain import PortableToolchain
from compilepool.protocol.contents import DamagedContents, verify
from compilepool.protocol.errors import ProtocolError
from compilepool.protocol.frames import OPEN_LIMITS, FrameDecoder, encode_frame
from compilepool.protocol.messages import Contents, Identity

FORMAT = 1
MANIFEST = "manifest.json"
# Some 250 bytes for each object: a million of them.
_MANIFEST_BYTES = 256 << 20
_OBJECT = re.compile(r"objects/([0-9a-f]{64})")


class BadBundle(Exception):
    """It is no bundle, or it is damaged; the message says where."""


class Described(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An object, as the manifest lists it."""

    sha256: str
    kernel: str
    target: str
    units: list[str]
    size: int


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is in a bundle, and what compiled it."""

    format: int
    toolchain: PortableToolchain
    targets: list[str]
    objects: list[Described]


class Packed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An object's header; the identity's fingerprint is empty: the bundle's toolchain takes its place."""

    identity: Identity
    contents: Contents


Result = tuple[Identity, Contents, Sequence[bytes]]

_encode = msgspec.msgpack.Encoder(order="sorted").encode
_decode = msgspec.msgpack.Decoder(Packed).decode
_manifest = msgspec.json.Decoder(Manifest).decode


def write_bundle(path: Path, toolchain: PortableToolchain, results: Iterable[Result]) -> Manifest:
    """Write a bundle, and rename it to its place when it is whole; raises OSError."""
    with tempfile.TemporaryFile(dir=path.parent) as spool:
        described = sorted(_spool(spool, results), key=lambda item: (item[0].kernel, item[0].sha256))
        objects = [item for item, _ in described]
        manifest = Manifest(FORMAT, toolchain, sorted({item.target for item in objects}), objects)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        with ExitStack() as failed:
            failed.callback(os.unlink, temporary)
            with (
                os.fdopen(descriptor, "wb") as out,
                tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar,
            ):
                _add(tar, MANIFEST, io.BytesIO(text := msgspec.json.format(msgspec.json.encode(manifest))), len(text))
                for item, offset in described:
                    spool.seek(offset)
                    _add(tar, f"objects/{item.sha256}", spool, item.size)
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
            failed.pop_all()
    return manifest


def _spool(spool: IO[bytes], results: Iterable[Result]) -> Iterator[tuple[Described, int]]:
    """Write the objects one after the other; each with where it is. Of several with the same bytes, one."""
    seen = set()
    for identity, contents, segments in results:
        header = _encode(Packed(msgspec.structs.replace(identity, fingerprint=""), contents))
        digest, offset, size = hashlib.sha256(), spool.tell(), 0
        for buffer in encode_frame(header, segments):
            digest.update(buffer)
            size += spool.write(buffer)
        if digest.hexdigest() in seen:
            continue
        seen.add(digest.hexdigest())
        units = [unit.config for unit in contents.units]
        yield Described(digest.hexdigest(), identity.recipe.name, contents.target, units, size), offset


def _add(tar: tarfile.TarFile, name: str, file: IO[bytes], size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o644
    tar.addfile(member, file)


class BundleReader:
    """A bundle that is read from its beginning to its end, once; `manifest` is there at once. Raises BadBundle."""

    def __init__(self, path: Path) -> None:
        try:
            self._tar = tarfile.open(path, mode="r|")  # noqa: SIM115 - closed by __exit__
            self._members: Iterator[tarfile.TarInfo] = iter(self._tar)
            self.manifest = self._read_manifest()
        except (tarfile.TarError, EOFError) as exc:
            raise BadBundle(f"{path} is no bundle: {exc}") from exc

    def __enter__(self) -> "BundleReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._tar.close()

    def results(self) -> Iterator[tuple[Described, Result]]:
        """Every object, checked; raises BadBundle at the first that is not what the manifest says, or is missing."""
        missing = {described.sha256: described for described in self.manifest.objects}
        try:
            for member in self._members:
                described = missing.pop(self._checked_name(member), None)
                if described is None or member.size != described.size:
                    raise BadBundle(f"{member.name!r} is not in the manifest, there twice, or of another size")
                yield described, _unpack(self._content(member, described.size), described)
        except (tarfile.TarError, EOFError) as exc:
            raise BadBundle(f"the bundle is damaged: {exc}") from exc
        if missing:
            raise BadBundle(f"the bundle is cut: {len(missing)} objects are missing, {min(missing)} among them")

    def _read_manifest(self) -> Manifest:
        member = next(self._members, None)
        if member is None or member.name != MANIFEST or not member.isreg() or member.size > _MANIFEST_BYTES:
            raise BadBundle(f"it does not begin with {MANIFEST}: it is no bundle")
        raw = self._content(member, member.size)
        try:
            known = msgspec.json.decode(raw)
            if isinstance(known, dict) and known.get("format", FORMAT) != FORMAT:
                raise BadBundle(f"its format is {known['format']}, and this version reads {FORMAT}")
            return _manifest(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise BadBundle(f"its manifest is damaged: {exc}") from exc

    def _checked_name(self, member: tarfile.TarInfo) -> str:
        match = _OBJECT.fullmatch(member.name)
        if match is None or not member.isreg() or member.linkname:
            raise BadBundle(f"{member.name!r} is no object: a bundle holds plain files named objects/SHA256")
        return match.group(1)

    def _content(self, member: tarfile.TarInfo, size: int) -> bytes:
        if size > OPEN_LIMITS.frame + OPEN_LIMITS.header:
            raise BadBundle(f"{member.name!r} has {size} bytes, more than an object can have")
        file: Any = self._tar.extractfile(member)
        raw: bytes = file.read(size) if file is not None else b""
        if len(raw) != size:
            raise BadBundle(f"the bundle is cut in {member.name!r}")
        return raw


def _unpack(raw: bytes, described: Described) -> Result:
    if hashlib.sha256(raw).hexdigest() != described.sha256:
        raise BadBundle(f"object {described.sha256} ({described.kernel}) is damaged: its checksum does not hold")
    try:
        (frame,) = FrameDecoder(OPEN_LIMITS).feed(raw)
        packed = _decode(frame.header)
        verify(packed.contents, frame.segments)
    except (ProtocolError, DamagedContents, ValueError) as exc:
        raise BadBundle(f"object {described.sha256} ({described.kernel}) is none: {exc}") from exc
    return packed.identity, packed.contents, frame.segments
