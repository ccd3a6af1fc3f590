"""The identity of what is compiled: everything that decides the result, and nothing that a client says of itself."""

import hashlib

import msgspec

from compilepool.daemon.events import Domain
from compilepool.protocol.messages import Compile, Recipe

# Changes when the meaning of a key's parts changes.
KEY_VERSION = 1


def digest_of(source: bytes) -> str:
    """SHA-256 of a source, in hexadecimal."""
    return hashlib.sha256(source).hexdigest()


def keys_of(domain: Domain, message: Compile, digest: str) -> tuple[str, ...]:
    """Keys of the results that will do for this request, its own first; none if it wants a fresh one."""
    if message.fresh:
        return ()
    plans = [message.recipe]
    if message.recipe.best_config and not message.exact:
        plans.append(msgspec.structs.replace(message.recipe, best_config=""))
    return tuple(_key(domain, plan, digest) for plan in plans)


def _key(domain: Domain, recipe: Recipe, digest: str) -> str:
    identity = (
        KEY_VERSION,
        domain.uid,
        domain.fingerprint,
        recipe.name,
        sorted(recipe.environment.items()),
        sorted(recipe.settings.items()),
        recipe.best_config,
        digest,
    )
    return hashlib.sha256(msgspec.msgpack.encode(identity)).hexdigest()
