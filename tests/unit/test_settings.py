"""The configuration file, and what is made of it."""

from pathlib import Path

import pytest

from compilepool.daemon.access import access_of
from compilepool.daemon.bounds import Bounds
from compilepool.daemon.credentials import Credentials
from compilepool.daemon.limiting import allowances_of, bounds_of
from compilepool.daemon.owner import HOST, Owner
from compilepool.daemon.settings import BadSettings, Settings, read_settings


def written(folder: Path, text: str, **drop_ins: str) -> Path:
    path = folder / "compilepool.toml"
    path.write_text(text)
    for name, more in drop_ins.items():
        (folder / "compilepool.toml.d").mkdir(exist_ok=True)
        (folder / "compilepool.toml.d" / f"{name}.toml").write_text(more)
    return path


def test_drop_ins_are_laid_over_in_the_order_of_their_names(tmp_path: Path) -> None:
    path = written(
        tmp_path, "[limits]\nslots = 8\nstore = '2GiB'\n", b="[limits]\nslots = 2\n", a="[limits]\nslots = 4\n"
    )
    limits = read_settings(path).limits
    assert (limits.slots, limits.store) == (2, "2GiB")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[acces]\n", "unknown field `acces`"),
        ("[limits]\nslots = 'many'\n", r"\$.limits.slots"),
        ("[sandbox]\nrequire = ['chroot']\n", r"\$.sandbox.require"),
        ("[access\n", "can't read"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(BadSettings, match=says):
        read_settings(written(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[limits]\nslots = 0\n", "slots = 0: 1 at least"),
        ("[limits.users.nobody-of-that-name]\nslots = 1\n", "knows no user 'nobody-of-that-name'"),
        ("[limits]\nstore = 'much'\n", "'much' is no size"),
    ],
)
def test_what_can_not_be_is_named(tmp_path: Path, text: str, says: str) -> None:
    limits = read_settings(written(tmp_path, text)).limits
    with pytest.raises(BadSettings, match=says):
        allowances_of(limits), bounds_of(Bounds(), limits)


def test_limits_of_one_user_are_the_users_in_every_namespace(tmp_path: Path) -> None:
    path = written(tmp_path, "[limits]\nslots = 8\n[limits.users.1000]\nslots = 2\nstore = '1MB'\n")
    limits = read_settings(path).limits
    allowances, bounds = allowances_of(limits), bounds_of(Bounds(), limits)
    assert [allowances.of(Owner(*owner)) for owner in ((HOST, 1000), ("team-a", 1000), (HOST, 1001))] == [2, 2, 8]
    assert [bounds.of(owner) for owner in ("1000", "team-a/1000", "1001")] == [1_000_000, 1_000_000, None]


def test_root_of_a_container_is_no_administrator(tmp_path: Path) -> None:
    access = access_of(read_settings(written(tmp_path, "[access]\nadmins = [7]\n")))
    root, member = Credentials(1, 0, frozenset({0})), Credentials(1, 5, frozenset({5, 7}))
    assert access.is_admin(root, HOST)
    assert access.is_admin(member, HOST)
    assert not access.is_admin(root, "team-a")
    assert not access.is_admin(member, "team-a")


def test_without_a_table_of_access_only_its_own_user_is_served() -> None:
    access = access_of(Settings())
    assert "serves uid" in access.refusal(Credentials(1, access.own + 1, frozenset()), HOST)
    assert access.refusal(Credentials(1, access.own, frozenset()), HOST) == ""
