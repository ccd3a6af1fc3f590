"""Containers that all run as uid 0: who they are is decided by the socket that is mounted into them."""

from collections.abc import Callable

from tests.hosts.host import Host, Service
from tests.hosts.test_users import COMPILE

SEEN = """
import compilepool
with compilepool.connect(autostart=False, fallback=False) as pool:
    report = pool.status()
    tell([report.administrator, [user.user for user in report.users], report.store_objects, len(report.forkservers)])
"""


def test_the_same_uid_on_two_sockets_shares_nothing_and_on_one_it_shares(
    host: Host, serve: Callable[..., Service]
) -> None:
    service = serve("[access]\n", namespaces=("team-a", "team-b"))
    origin, keys = host.contained("team-a", COMPILE, "contained")
    assert (origin, len(keys)) == ("compiled", 1)
    assert host.contained("team-b", SEEN) == [False, ["team-b/0"], 0, 0]
    others, other_keys = host.contained("team-b", COMPILE, "contained")
    assert others == "compiled"
    assert other_keys != keys
    assert host.contained("team-a", COMPILE, "contained") == ["store", keys]
    with service.pool() as pool:
        report = pool.status()
    assert report.administrator, "root on the host's own socket is"
    assert {user.user: user.store_objects for user in report.users} == {"0": 0, "team-a/0": 1, "team-b/0": 1}
