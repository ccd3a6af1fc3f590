"""A day in the life of a host's administrator: `python -m tests.hosts.day`, as root; docs/shared-host.md tells it.

The daemon is the real one, started and stopped as systemd would; users, groups and sockets are a play's (`host`).
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner

from compilepool.cli import main as compilepool
from tests.hosts.host import ALICE, BOB, CAROL, REPOSITORY, Host, Service, User, a_host, source

SETTINGS = '[access]\nadmins = ["compilepool-admin"]\n[sharing]\nbackend = "compilepool-backend"\n'
LIMITED = SETTINGS + "[limits.users.alice]\nslots = 1\n"

# A program that trains, as far as its compiles go: it takes what the pool gives, and nothing else.
TRAINING = """
import compilepool
from compilepool.corpus import bundled
kernels = bundled("llama_train")
failed = []
with compilepool.connect(autostart=False, fallback=False) as pool:
    for epoch in range(int(sys.argv[1])):
        for first in range(0, len(kernels), 4):
            asked = [pool.warm(k.name, k.source + "#" * epoch + "\\n", priority="foreground")
                     for k in kernels[first:first + 4]]
            failed += [str(error) for future in asked if (error := future.exception(timeout=300))]
            print("step", flush=True)
tell({"kernels": int(sys.argv[1]) * len(kernels), "failed": failed})
"""


def live(say: Callable[[str], None]) -> None:
    """The day; raises AssertionError where it does not go well."""
    with tempfile.TemporaryDirectory() as image, a_host() as host:
        say("08:00  install")
        installed = CliRunner().invoke(compilepool, ["install", "--system", "--root", image])
        assert installed.exit_code == 0, installed.output
        assert (Path(image) / "etc/systemd/system/compilepool.service").exists()
        say(f"       {installed.output.count('wrote')} files; systemctl enable --now compilepool.socket ...")
        service = Service(host, SETTINGS)
        try:
            service.backend()
            _work(host, service, say)
        finally:
            service.close()


def _work(host: Host, service: Service, say: Callable[[str], None]) -> None:
    say("09:00  alice and bob train, at once, the same model")
    alice, bob = _train(host, ALICE, 2), _train(host, BOB, 2)
    _steps(alice, 2)
    _steps(bob, 2)
    say("10:00  carol, an administrator, looks")
    _show(host.cli(CAROL, "status"), say)

    say("10:05  she lets alice have one slot at a time: a drop-in, and systemctl reload compilepool")
    service.reload(LIMITED)
    with service.pool() as pool:
        assert {user.user: user.most for user in pool.status().users}["64001"] == 1

    say("11:00  she upgrades: systemctl restart compilepool, while both go on")
    with service.pool() as pool:
        before = pool.status().instance
    service.restart()
    service.backend()
    with service.pool() as pool:
        assert pool.status().instance != before
    for name, training in (("alice", alice), ("bob", bob)):
        told = _end(training)
        say(f"       {name}: {told}")
        assert '"failed": []' in told, "an upgrade fails no compile"

    say("12:00  what it was worth")
    with service.pool() as pool:
        counted = {user.user: user for user in pool.status().users}
        made = [e for e in pool.events() if e.name == "compiled" and e.fields.get("user") == "shared"]
    asked = counted["shared"].requests
    say(f"       since the upgrade the backend made {len(made)} binaries, and was asked for {asked}")

    say("17:00  bob leaves the team: carol purges what is his")
    _show(host.cli(CAROL, "cache", "clear", "--user", "bob", "--yes"), say)
    with service.pool() as pool:
        counted = {user.user: user for user in pool.status().users}
    assert counted["64002"].store_objects == 0
    assert counted["64001"].store_objects > 0


def _train(host: Host, user: User, epochs: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-P", "-c", source(TRAINING), str(epochs)]
    return host.start(user, *command, stdout=subprocess.PIPE)


def _steps(training: "subprocess.Popen[str]", count: int) -> None:
    assert training.stdout is not None
    for _ in range(count):
        assert training.stdout.readline() == "step\n"


def _end(training: "subprocess.Popen[str]") -> str:
    output, _ = training.communicate(timeout=600)
    assert training.returncode == 0
    return str(output.splitlines()[-1])


def _show(done: "subprocess.CompletedProcess[str]", say: Callable[[str], None]) -> None:
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        say(f"       {line}")


if __name__ == "__main__":
    live(lambda text: print(text.replace(str(REPOSITORY), "."), flush=True))
