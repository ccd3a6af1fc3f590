"""Who is let in, as what, and what the administrator may change while it runs."""

import socket
import subprocess
import sys
from collections.abc import Callable

from tests.conftest import Log
from tests.hosts.host import ALICE, BACKEND, BOB, CAROL, REPOSITORY, SERVICE, Host, Service

GREET = """
from compilepool.client import connect
from compilepool.protocol.errors import PoolUnavailable, Refused
try:
    with connect(autostart=False, fallback=False) as pool:
        tell(pool.status().administrator)
except (PoolUnavailable, Refused) as exc:
    tell(str(exc))
"""


def test_users_and_groups_of_the_configuration_are_let_in(host: Host, serve: Callable[..., Service]) -> None:
    service = serve('[access]\nusers = ["bob"]\nadmins = ["compilepool-admin"]\n')
    assert "has not let uid 64001 use it" in host.python(ALICE, GREET)
    assert host.python(BOB, GREET) is False
    assert host.python(CAROL, GREET) is True
    service.reload('[access]\ngroups = ["gpu"]\n')
    assert host.python(ALICE, GREET) is False
    assert "has not let uid 64003 use it" in host.python(CAROL, GREET)


def test_the_services_own_users_are_no_clients(host: Host, service: Service) -> None:
    assert "does not serve the user that it runs as" in host.python(SERVICE, GREET)
    assert "the service's own users have nothing compiled here" in host.python(BACKEND, GREET)
    told = host.python(
        BOB,
        """
from pathlib import Path
from compilepool.daemon.worker.link import attach
from compilepool.protocol.detect import detect
from compilepool.protocol.errors import PoolUnavailable
try:
    attach(Path(os.environ["COMPILEPOOL_SOCKET"]), detect(with_torch=False), "backend")
except PoolUnavailable as exc:
    tell(str(exc))
""",
    )
    assert "uid 64002 is not this daemon's backend user" in told


def test_who_has_no_uid_in_the_daemons_namespace_is_refused(host: Host) -> None:
    """To a daemon in a container, all whom its user namespace does not map look alike."""
    path = host.home(BOB) / "pool.sock"
    host.settings.write_text("[access]\n")
    serve = [sys.executable, "-P", "-m", "compilepool", "serve", "--config", str(host.settings), "--socket", str(path)]
    environment = {**host.environment(BOB), "PYTHONPATH": str(REPOSITORY)}
    daemon = host.start(BOB, "unshare", "--user", "--map-current-user", *serve, env=environment, stderr=subprocess.PIPE)
    log = Log(daemon)
    log.wait_for("event=serving")
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(60)
        stranger.connect(str(path))
        told = b"".join(iter(lambda: stranger.recv(4096), b""))
    assert b"you have no uid here (65534)" in told
    daemon.kill()
    log.close()


def test_a_bad_configuration_changes_nothing(host: Host, service: Service) -> None:
    host.settings.write_text("[acces]\n")
    service.process.send_signal(1)
    assert "unknown field `acces`" in service.log.wait_for("event=not-reloaded")
    assert host.python(BOB, GREET) is False
    service.reload('[access]\nusers = ["alice"]\n')
    host.settings.write_text('[access]\nusers = ["nobody-of-that-name"]\n')
    service.process.send_signal(1)
    assert "knows no user" in service.log.wait_for("event=not-reloaded")
    assert "has not let uid 64002 use it" in host.python(BOB, GREET)


def test_another_salt_disowns_everything(host: Host, serve: Callable[..., Service]) -> None:
    from tests.hosts.test_users import COMPILE

    service = serve("[access]\n")
    assert host.python(ALICE, COMPILE, "salted")[0] == "compiled"
    assert host.python(ALICE, COMPILE, "salted")[0] == "store"
    host.settings.write_text('[access]\n[store]\nsalt = "2"\n')
    service.restart()
    assert host.python(ALICE, COMPILE, "salted")[0] == "compiled"


def test_variables_that_load_code_are_refused(host: Host, service: Service) -> None:
    told = host.python(
        BOB,
        """
from compilepool.client import connect
from compilepool.protocol import messages as m
from compilepool.protocol.errors import Refused
from concurrent.futures import Future
future = Future()
with connect(autostart=False, fallback=False) as pool:
    recipe = m.Recipe("k", {"LD_PRELOAD": "/tmp/x.so", "TRITON_DEBUG": "1"}, {})
    pool.link().request(lambda n: m.Compile(n, recipe), lambda answer, _: future.set_result(str(answer)), (b"x",))
    tell(future.result(timeout=60))
""",
    )
    assert "a compile may not set LD_PRELOAD:" in told


def test_a_sandbox_that_is_required_is_a_condition(host: Host, serve: Callable[..., Service]) -> None:
    from tests.hosts.test_users import COMPILE

    serve('[access]\n[sandbox]\nrequire = ["landlock", "seccomp"]\n')
    told = host.python(
        ALICE,
        """
import compilepool
with compilepool.connect(autostart=False, fallback=False) as pool:
    tell(str(pool.warm("k", "x = 1").exception(timeout=100)))
""",
        COMPILEPOOL_SANDBOX="0",
    )
    assert "no landlock and no seccomp, which the daemon requires" in told
    assert host.python(BOB, COMPILE, "with_one")[0] == "compiled"
    assert "sandbox: landlock" in host.cli(BOB, "status").stdout
