"""The configuration file of a daemon that serves several users, and its drop-ins: TOML.

    /etc/compilepool/compilepool.toml      read with --config; `compilepool.toml.d/*.toml` beside it are laid over it
    [serve]                                options of `compilepool serve`, by their names: read at the start
    [access] [limits] [sandbox] [sharing]  read at the start, and again at SIGHUP
    [store]                                salt: part of every key; another one disowns all that was kept

A file that can't be understood ends a start, and at SIGHUP leaves everything as it was.
"""

import grp
import pwd
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

Name = str | int
# A version is the least: Linux 6.12 has Landlock 6.
Primitive = Annotated[str, msgspec.Meta(pattern=r"^(landlock( \d+)?|seccomp)$")]


class BadSettings(Exception):
    """The file can't be read or understood; the message says where and why."""


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Base of the file's tables."""


class Access(_Table, frozen=True):
    """Who is served: these users and the members of these groups; empty: whoever may open the socket.

    admins: groups whose members see, stop and purge everything, as root does; over the host's own socket only
    """

    users: list[Name] = []
    groups: list[Name] = []
    admins: list[Name] = []


class UserLimits(_Table, frozen=True):
    """What one user may have: slots at once, and bytes in the store ('2GiB', or a number)."""

    slots: int | None = None
    store: int | str | None = None


class Limits(UserLimits, frozen=True):
    """The same for every user, and for some by name."""

    users: dict[str, UserLimits] = {}


class Sandbox(_Table, frozen=True):
    """What every worker must have: a forkserver whose kernel lacks one of these is refused."""

    require: list[Primitive] = []


class Sharing(_Table, frozen=True):
    """backend: the user whose forkservers compile for all; without one, users share nothing."""

    backend: Name | None = None


class StoreSettings(_Table, frozen=True):
    """See the module's docstring."""

    salt: str = ""


class Settings(_Table, frozen=True):
    """All tables; without [access] a daemon serves its own user alone."""

    serve: dict[str, Any] = {}
    access: Access | None = None
    limits: Limits = Limits()
    sandbox: Sandbox = Sandbox()
    sharing: Sharing = Sharing()
    store: StoreSettings = StoreSettings()


def read_settings(path: Path) -> Settings:
    """The file with its drop-ins, in the order of their names; raises BadSettings."""
    tables: dict[str, Any] = {}
    for file in (path, *sorted(path.with_name(path.name + ".d").glob("*.toml"))):
        try:
            _lay_over(tables, tomllib.loads(file.read_text()))
        except (OSError, ValueError) as exc:
            raise BadSettings(f"can't read {file}: {exc}") from exc
    try:
        return msgspec.convert(tables, Settings)
    except msgspec.ValidationError as exc:
        raise BadSettings(f"{path} (with its drop-ins) has a mistake: {exc}") from exc


def uid_of(name: Name) -> int:
    """A user by name or number; raises BadSettings."""
    try:
        return name if isinstance(name, int) else int(name) if name.isdigit() else pwd.getpwnam(name).pw_uid
    except KeyError:
        raise BadSettings(f"this host knows no user {name!r}") from None


def gid_of(name: Name) -> int:
    """A group by name or number; raises BadSettings."""
    try:
        return name if isinstance(name, int) else int(name) if name.isdigit() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise BadSettings(f"this host knows no group {name!r}") from None


def _lay_over(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    for name, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(name), dict):
            _lay_over(below[name], value)
        else:
            below[name] = value
