"""The identity of what is compiled: everything that decides the result, and nothing that a client says of itself."""

import hashlib

import msgspec

from compilepool.daemon.events import Domain
from compilepool.daemon.owner import Owner
from compilepool.protocol.messages import Compile, Identity, Jit, Lower, Recipe

# Changes when the meaning of a key's parts changes.
KEY_VERSION = 3


def digest_of(source: bytes) -> str:
    """SHA-256 of a source, in hexadecimal."""
    return hashlib.sha256(source).hexdigest()


def identities_of(domain: Domain, message: Compile, digest: str) -> tuple[Identity, ...]:
    """Of the results that will do for this request, its own first; none if it wants a fresh one."""
    recipe = message.recipe
    if message.fresh:
        return ()
    if isinstance(recipe, Jit):
        return (_identity_of_jit(domain, recipe, digest),)
    plans = [recipe]
    if recipe.best_config and not message.exact:
        plans.append(msgspec.structs.replace(recipe, best_config=""))
    return tuple(Identity(plan, digest, domain.fingerprint) for plan in plans)


def _identity_of_jit(domain: Domain, recipe: Jit, digest: str) -> Identity:
    """By Triton's own key: a function's pickle is not the same bytes in every process, and its worker checks the key.

    What TTIR was made of can't be checked: that is known by its own bytes too.
    """
    settings = {"triton_hash": recipe.hash, "target": recipe.target, "form": "ttir" if recipe.ttir else "function"}
    plan = Recipe(recipe.name, recipe.environment, dict(settings))
    return Identity(plan, digest if recipe.ttir else recipe.hash, domain.fingerprint)


def identity_of_lowering(message: Lower, ttir: bytes) -> Identity:
    """Of what a backend makes of TTIR: the same for everybody who has the same bytes."""
    task = message.task
    plan = Recipe(task.name, {}, {"options": task.options, "target": task.target}, keep_ir=task.keep_ir)
    return Identity(plan, digest_of(ttir), message.backend)


def key_of(owner: Owner, identity: Identity, salt: str) -> str:
    """Under which an owner's results are kept."""
    recipe = identity.recipe
    parts = (
        KEY_VERSION,
        salt,
        str(owner),
        identity.fingerprint,
        recipe.name,
        sorted(recipe.environment.items()),
        sorted(recipe.settings.items()),
        recipe.best_config,
        recipe.keep_ir,
        identity.source,
    )
    return hashlib.sha256(msgspec.msgpack.encode(parts)).hexdigest()
