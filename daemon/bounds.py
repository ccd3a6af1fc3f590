"""How much the store keeps, in all and of each owner."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may be kept.

    size, objects: bytes and objects in all; user: bytes of one owner (None: all); of_user: by uid, where it differs
    free: bytes that stay free on the disk
    """

    size: int = 10 << 30
    objects: int = 500_000
    user: int | None = None
    free: int = 1 << 30
    of_user: Mapping[str, int] = field(default_factory=dict)

    def of(self, owner: str) -> int | None:
        """The most bytes of this owner ('1000', 'team-a/1000')."""
        return self.of_user.get(owner.rpartition("/")[2], self.user)


class TooManyPinned(Exception):
    """What is pinned would leave too little room for what is not."""
