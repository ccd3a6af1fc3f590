"""Whose something is: the unit of trust.

A uid alone does not say who somebody is: programs in containers often all run as uid 0. So an owner is a uid within a
*namespace*, that of the listening socket over which it came; an administrator mounts one socket into the containers of
each tenant. Owners share nothing with each other, but what belongs to `SHARED`: binaries that the service itself has
made of inert input.
"""

import re
from typing import NamedTuple

# The namespace of the host's own socket.
HOST = ""
_NAMESPACE = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_SHARED_NAMESPACE = "@shared"


class Owner(NamedTuple):
    """A user of one namespace; as text '1000', 'team-a/1000' or 'shared'."""

    namespace: str
    uid: int

    def __str__(self) -> str:
        if self.namespace == _SHARED_NAMESPACE:
            return "shared"
        return f"{self.namespace}/{self.uid}" if self.namespace else str(self.uid)


SHARED = Owner(_SHARED_NAMESPACE, 0)


def is_namespace(name: str) -> bool:
    """Whether a namespace may be called so: lower case letters, digits, '_', '.' and '-'."""
    return _NAMESPACE.fullmatch(name) is not None
