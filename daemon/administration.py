"""What users may do with what the store has of theirs: list it, read it, add to it, pin, remove and verify.

An administrator may list, pin, remove and verify what is others' by naming the owner; nobody reads or adds for another.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from compilepool.daemon.bounds import TooManyPinned
from compilepool.daemon.identity import key_of
from compilepool.daemon.index import Entry
from compilepool.daemon.objects import Stored
from compilepool.daemon.owner import Owner
from compilepool.daemon.payload import NAME_CHARACTERS
from compilepool.daemon.store import Store
from compilepool.protocol import messages as m
from compilepool.protocol.contents import DamagedContents, verify
from compilepool.protocol.errors import Failure

# Each takes some 300 bytes of the answer's header.
PAGE = 500
# In one order.
KEYS = 500
# Of a digest, or a target.
DIGEST_CHARACTERS = 128
_KEY = re.compile(r"[0-9a-f]{64}")

Order = m.ListObjects | m.ReadObject | m.FindObject | m.AddObject | m.ManageObjects
Answer = tuple[m.AnyMessage] | tuple[m.AnyMessage, tuple[bytes, ...]]


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks; `salt`: of the keys under which what they add is kept."""

    owner: Owner
    admin: bool
    salt: str


def pieces(order: Order) -> Iterator[Order]:
    """The order in parts that don't take long: to verify an object is to read it."""
    if isinstance(order, m.ManageObjects) and order.action == "verify" and 0 < len(order.keys) <= KEYS:
        for key in dict.fromkeys(order.keys):
            yield msgspec.structs.replace(order, keys=[key])
    else:
        yield order


def joined(answers: list[Answer]) -> Answer:
    """The answer to an order, of those to its parts."""
    told = [answer[0] for answer in answers]
    managed = [message for message in told if isinstance(message, m.Managed)]
    if len(managed) < len(told) or not managed:
        return next(answer for answer in answers if not isinstance(answer[0], m.Managed))
    return (m.Managed(managed[0].id, sum(one.objects for one in managed), sum(one.bytes for one in managed)),)


def administer(store: Store, asker: Asker, order: Order, segments: tuple[bytes, ...]) -> Answer:
    """Do it for who asks, and nobody else; the answer with its segments. Blocks on the disk."""
    if isinstance(order, m.ManageObjects) and len(order.keys) > KEYS:
        return _refused(order.id, f"it names {len(order.keys)} objects; at most {KEYS} are taken at once")
    named = order.owner if isinstance(order, m.ListObjects | m.ManageObjects) else ""
    if named and named != str(asker.owner) and not asker.admin:
        return _refused(order.id, "only an administrator may do that with what is another user's")
    try:
        return _administer(store, asker, named or str(asker.owner), order, segments)
    except TooManyPinned as exc:
        return _refused(order.id, str(exc))
    except OSError as exc:
        return _refused(order.id, f"the store can't do that now: {exc}")


def _administer(store: Store, asker: Asker, owner: str, order: Order, segments: tuple[bytes, ...]) -> Answer:
    match order:
        case m.ListObjects(request, after):
            return (m.Objects(request, [_info(entry) for entry in store.entries(owner, after, PAGE)]),)
        case m.ReadObject(request, key):
            # A key becomes a file's name: nothing else may.
            return _read(store, owner, request, key if _KEY.fullmatch(key) else "", key)
        case m.FindObject(request, identity):
            return _read(store, owner, request, key_of(asker.owner, identity, asker.salt), identity.recipe.name)
        case m.AddObject(request, identity, contents):
            return _add(store, asker, request, identity, Stored(contents, segments))
        case m.ManageObjects(request):
            done = _manage(store, owner, order)
            return (m.Managed(request, len(done), sum(entry.size for entry in done)),)


def _read(store: Store, owner: str, request: int, key: str, told: str) -> Answer:
    found = store.read(key, owner) if key else None
    if found is None:
        return _refused(request, f"the store has no object {told[:100]!r} of yours")
    sealed, stored = found
    return m.Object(request, sealed.identity, stored.contents), stored.segments


def _add(store: Store, asker: Asker, request: int, identity: m.Identity, stored: Stored) -> Answer:
    try:
        verify(stored.contents, stored.segments)
    except DamagedContents as exc:
        return _refused(request, f"what is to be added is damaged: {exc}")
    if len(identity.recipe.name) > NAME_CHARACTERS:
        return _refused(request, f"its name has more than {NAME_CHARACTERS} characters")
    if max(map(len, (stored.contents.target, identity.source, identity.fingerprint))) > DIGEST_CHARACTERS:
        return _refused(request, f"its target and digests have more than {DIGEST_CHARACTERS} characters")
    # Whatever it is called elsewhere: the key is the daemon's own.
    if not store.put(key_of(asker.owner, identity, asker.salt), str(asker.owner), identity, stored):
        return _refused(request, f"the store keeps nothing: {store.trouble or 'it is closed'}")
    return (m.Managed(request, 1, sum(map(len, stored.segments))),)


def _manage(store: Store, owner: str, order: m.ManageObjects) -> list[Entry]:
    match order.action:
        case "pin" | "unpin":
            return store.pin(order.keys, owner, pinned=order.action == "pin")
        case "remove":
            return store.remove(order.keys, owner)
        case "verify":
            return store.verify(order.keys, owner)


def _refused(request: int, reason: str) -> Answer:
    return (m.Failed(request, Failure("refused", reason)),)


def _info(entry: Entry) -> m.ObjectInfo:
    return m.ObjectInfo(
        key=entry.key,
        kernel=entry.kernel,
        target=entry.target,
        fingerprint=entry.fingerprint,
        units=entry.units,
        size=entry.size,
        created=entry.created,
        used=entry.used,
        hits=entry.hits,
        pinned=entry.pinned,
    )
