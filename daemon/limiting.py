"""What the settings let each user have, in the terms of the scheduler and of the store."""

from dataclasses import replace

from compilepool.daemon.bounds import Bounds
from compilepool.daemon.events import Allowances
from compilepool.daemon.settings import BadSettings, Limits, UserLimits, uid_of
from compilepool.protocol.sizes import BadSize, parse_size


def allowances_of(limits: Limits) -> Allowances:
    """Slots at once; raises BadSettings."""
    for table in (limits, *limits.users.values()):
        if table.slots is not None and table.slots < 1:
            raise BadSettings(f"[limits] slots = {table.slots}: 1 at least; [access] decides who is served at all")
    return Allowances(limits.slots, {uid_of(name): table.slots for name, table in limits.users.items()})


def bounds_of(bounds: Bounds, limits: Limits) -> Bounds:
    """What the store keeps; raises BadSettings."""
    of_user = {uid_of(name): _size(table) for name, table in limits.users.items() if table.store is not None}
    user = bounds.user if limits.store is None else _size(limits)
    return replace(bounds, user=user, of_user={str(uid): size for uid, size in of_user.items() if size is not None})


def _size(table: UserLimits) -> int | None:
    try:
        return parse_size(table.store) if isinstance(table.store, str) else table.store
    except BadSize as exc:
        raise BadSettings(f"[limits] store: {exc}") from exc
