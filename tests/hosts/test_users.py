"""Two users on one daemon: what is one's is nothing to the other."""

from tests.hosts.host import ALICE, BOB, CAROL, Host, Service

COMPILE = """
import compilepool
from tests.sources import pointwise
kernel = pointwise(sys.argv[1])
with compilepool.connect(autostart=False, fallback=False) as pool:
    answer = pool.warm(kernel.name, kernel.source).result(timeout=150)
    tell([answer.origin, [info.key for info in pool.objects()]])
"""


def test_users_know_nothing_of_each_other(host: Host, service: Service) -> None:
    origin, keys = host.python(ALICE, COMPILE, "alices")
    assert (origin, len(keys)) == ("compiled", 1)
    seen = host.python(
        BOB,
        """
import compilepool
from compilepool.protocol.errors import Refused
def said(call, *arguments, **named):
    try:
        call(*arguments, **named)
    except Refused as exc:
        return str(exc)
with compilepool.connect(autostart=False, fallback=False) as pool:
    status = pool.status()
    tell({
        "requests": status.counters.get("requests", 0), "objects": list(pool.objects()), "clients": status.clients,
        "stored": status.store_objects, "users": [user.user for user in status.users], "admin": status.administrator,
        "forkservers": status.forkservers, "events": str(pool.events()), "cpu": status.cpu_seconds,
        "read": said(pool.read_object, sys.argv[1]), "list": said(lambda: list(pool.objects("64001"))),
        "removed": pool.manage_objects("remove", [sys.argv[1]]),
        "remove": said(pool.manage_objects, "remove", [sys.argv[1]], "64001"), "stop": said(pool.stop, now=True),
    })
""",
        keys[0],
    )
    assert seen["requests"] == seen["stored"] == seen["cpu"] == 0
    assert seen["objects"] == seen["forkservers"] == []
    assert seen["users"] == ["64002"]
    assert not seen["admin"]
    assert "alices" not in seen["events"]
    assert "64001" not in seen["events"]
    assert "has no object" in seen["read"]
    assert seen["removed"] == [0, 0]
    assert all("only an administrator may" in seen[what] for what in ("list", "remove", "stop"))
    origin, theirs = host.python(BOB, COMPILE, "alices")
    assert origin == "compiled", "what another user has compiled is no hit, and takes its time"
    assert theirs != keys
    assert host.python(ALICE, COMPILE, "alices") == ["store", keys]


def test_administrators_see_and_purge_everything(host: Host, service: Service) -> None:
    host.python(ALICE, COMPILE, "one_of_alices")
    host.python(BOB, COMPILE, "one_of_bobs")
    status = host.cli(CAROL, "status")
    assert "alice (64001): 0 running" in status.stdout, status.stderr
    assert "bob (64002): 0 running" in status.stdout
    purged = host.cli(CAROL, "cache", "clear", "--user", "alice", "--yes")
    assert "removed 1 object" in purged.stdout, purged.stderr
    with service.pool() as pool:
        left = {user.user: user.store_objects for user in pool.status().users}
    assert (left["64001"], left["64002"]) == (0, 1)
    refused = host.cli(BOB, "cache", "clear", "--user", "alice", "--yes")
    assert refused.returncode == 1
    assert "only an administrator may do that" in refused.stderr


def test_a_failure_is_found_in_the_log_by_what_the_client_prints(host: Host, service: Service) -> None:
    kernels = host.home(ALICE) / "bad.jsonl"
    kernels.write_text('{"name": "bad", "source": "1 +"}\n')
    kernels.chmod(0o644)
    failed = host.cli(ALICE, "compile", str(kernels))
    request = failed.stdout.split("(request ")[1].split(")")[0]
    assert f"user=64001 request={request} kernel=bad" in service.log.wait_for("event=failed")
