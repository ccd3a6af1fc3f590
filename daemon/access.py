"""Who may use this daemon, as what, and how much of it they see.

    alone     no [access] in the settings: the daemon's own user, who sees everything
    shared    the users that the settings name, each of whom sees what is theirs
    admin     root, and members of the admin groups, over the host's own socket: they see everything
    backend   the user whose forkservers compile for all (`Sharing`); it is served nothing itself

A daemon that serves others never serves its own user as a client: a worker of its backend that got out of hand would be
an administrator.
"""

import os
from dataclasses import dataclass

from compilepool.daemon.credentials import Credentials, overflow_uid
from compilepool.daemon.owner import HOST
from compilepool.daemon.settings import Settings, gid_of, uid_of
from compilepool.protocol.messages import Role


@dataclass(frozen=True, slots=True)
class Access:
    """The rules, with numbers for names; made by `access_of`."""

    own: int
    shared: bool
    nobody: int = 65534
    users: frozenset[int] = frozenset()
    groups: frozenset[int] = frozenset()
    admins: frozenset[int] = frozenset()
    backend: int | None = None

    def refusal(self, who: Credentials, namespace: str) -> str:
        """Why this peer is not served; '' if it is."""
        if who.uid == self.nobody:
            return f"you have no uid here ({who.uid}): your user namespace maps you to none of this host's"
        if not self.shared:
            only = f"this daemon serves uid {self.own} only, and you are uid {who.uid}: start your own"
            return "" if who.uid == self.own else only
        if self.is_admin(who, namespace) or self._may_be_backend(who, namespace):
            return ""
        if who.uid == self.own:
            return "this daemon does not serve the user that it runs as: ask as root, or as a member of an admin group"
        if (self.users or self.groups) and who.uid not in self.users and not self.groups & who.groups:
            return f"this daemon's administrator has not let uid {who.uid} use it ([access] in its configuration)"
        return ""

    def refusal_of_role(self, who: Credentials, namespace: str, role: Role) -> str:
        """Why this peer may not be what it says; '' if it may."""
        if role == "backend":
            return "" if self._may_be_backend(who, namespace) else f"uid {who.uid} is not this daemon's backend user"
        if self.shared and who.uid in (self.own, self.backend) and not self.is_admin(who, namespace):
            return "the service's own users have nothing compiled here"
        return ""

    def is_admin(self, who: Credentials, namespace: str) -> bool:
        """Whether this peer sees and may do everything."""
        if not self.shared:
            return True
        return namespace == HOST and (who.uid == 0 or bool(self.admins & who.groups))

    def _may_be_backend(self, who: Credentials, namespace: str) -> bool:
        return self.shared and namespace == HOST and who.uid == self.backend


def access_of(settings: Settings) -> Access:
    """The rules of these settings; raises BadSettings where a name is unknown."""
    table, backend = settings.access, settings.sharing.backend
    if table is None:
        return Access(os.getuid(), shared=False, nobody=overflow_uid())
    return Access(
        own=os.getuid(),
        shared=True,
        nobody=overflow_uid(),
        users=frozenset(map(uid_of, table.users)),
        groups=frozenset(map(gid_of, table.groups)),
        admins=frozenset(map(gid_of, table.admins)),
        backend=None if backend is None else uid_of(backend),
    )
