"""The units, and the daemon under what starts, hears and watches it."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from compilepool.cli import main
from compilepool.client import connect
from tests.conftest import Log

# What an exposure of 10 is to a service without any protection; the worst that is accepted here.
WORST_EXPOSURE = 1.5
PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 65, 1


def needed(tool: str) -> str:
    found = shutil.which(tool)
    if found is None:
        pytest.skip(f"this host has no {tool}")
    return found


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree with the units of this installation."""
    root = tmp_path_factory.mktemp("root")
    for options in (["--system"], []):
        done = CliRunner().invoke(main, ["install", *options, "--root", str(root)])
        assert done.exit_code == 0, done.output
    return root


def test_an_installation_writes_units_that_run_it(installed: Path) -> None:
    unit = (installed / "etc/systemd/system/compilepool.service").read_text()
    (command,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    assert "@" not in command
    done = subprocess.run([*command.split()[:-4], "--help"], capture_output=True, text=True, timeout=60, check=True)
    assert "--config" in done.stdout


def test_a_configuration_that_is_there_is_kept(tmp_path: Path) -> None:
    own = tmp_path / "etc/compilepool/compilepool.toml"
    own.parent.mkdir(parents=True)
    own.write_text("# mine\n")
    done = CliRunner().invoke(main, ["install", "--system", "--root", str(tmp_path)])
    assert f"kept {own}" in done.output
    assert own.read_text() == "# mine\n"


def test_every_unit_is_valid(installed: Path) -> None:
    tool = needed("systemd-analyze")
    units = sorted(map(str, installed.glob("etc/systemd/system/compilepool*")))
    units += sorted(map(str, installed.glob("systemd/user/compilepool*")))
    assert len(units) == 6
    for arguments in (units[:4], ["--user", *units[4:]]):
        command = [tool, "verify", *arguments]
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(installed)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        # Of other units of this host, and of what it is as root in a container, nothing is meant here.
        about = [line for line in done.stderr.splitlines() if "compilepool" in line]
        assert about == []
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["compilepool.service", "compilepool-backend.service"])
def test_a_service_is_exposed_to_little(installed: Path, name: str) -> None:
    unit = str(installed / "etc/systemd/system" / name)
    command = [needed("systemd-analyze"), "security", "--offline=true", unit]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    exposure = float(re.findall(r"Overall exposure level for \S+: (\S+)", done.stdout)[0])
    assert exposure <= WORST_EXPOSURE, done.stdout


def test_the_shipped_configuration_is_taken(installed: Path, tmp_path: Path) -> None:
    from compilepool.daemon.settings import read_settings

    settings = read_settings(installed / "etc/compilepool/compilepool.toml")
    assert settings.access is not None
    assert settings.access.admins == ["compilepool-admin"]
    assert settings.sharing.backend == "compilepool-backend"


def test_it_is_started_by_its_socket(tmp_path: Path) -> None:
    path = tmp_path / "pool.sock"
    serve = [sys.executable, "-P", "-m", "compilepool", "serve", "--store", str(tmp_path / "store"), "--slots", "2"]
    activate = [needed("systemd-socket-activate"), f"--listen={path}", "--fdname=host", "--", *serve]
    activated = subprocess.Popen(activate, stderr=subprocess.PIPE, text=True)
    log = Log(activated)
    try:
        log.wait_for("Listening on")
        with connect(path, autostart=False, fallback=False) as pool:
            assert pool.status().socket == str(path)
            pool.stop()
        log.wait_for("event=stopped")
        assert activated.wait(timeout=60) == 0
        assert path.exists(), "the socket is the service manager's"
    finally:
        activated.kill()
        activated.wait()
        log.close()


# The daemon as it is, but that SIGUSR1 blocks its only thread until somebody opens the pipe.
BLOCKABLE = """
import ctypes, os, signal, sys
from compilepool.cli import main
signal.signal(signal.SIGUSR1, lambda *_: open(sys.argv[1]).read())
ctypes.CDLL(None).prctl({mdwe}, {refuse}, 0, 0, 0)
main(sys.argv[2:])
"""


class Manager:
    """A service manager, as far as its notification socket goes."""

    def __init__(self, folder: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(folder / "notify.sock"))
        self.socket.settimeout(60)

    def wait_for(self, state: str) -> None:
        """Until the daemon says so."""
        while self.socket.recv(4096).decode() != state:
            pass

    def hears_within(self, seconds: float) -> bool:
        """Whether anything comes in so long."""
        self.socket.settimeout(seconds)
        try:
            return bool(self.socket.recv(4096))
        except TimeoutError:
            return False
        finally:
            self.socket.settimeout(60)

    def drain(self) -> None:
        """Forget what has come."""
        while self.hears_within(0.001):
            pass


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(tmp_path)
    yield made
    made.socket.close()


def test_it_says_how_it_stands_and_a_blocked_loop_misses_the_watchdog(tmp_path: Path, manager: Manager) -> None:
    """With memory that can't be made executable, as its unit has it."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    interval = 0.3
    options = ["serve", "--socket", str(tmp_path / "pool.sock"), "--store", str(tmp_path / "store")]
    code = BLOCKABLE.format(mdwe=PR_SET_MDWE, refuse=PR_MDWE_REFUSE_EXEC_GAIN)
    variables = {"NOTIFY_SOCKET": str(tmp_path / "notify.sock"), "WATCHDOG_USEC": str(int(interval * 1e6))}
    daemon = subprocess.Popen(
        [sys.executable, "-P", "-c", code, str(gate), *options],
        env={**os.environ, **variables},
        stderr=subprocess.DEVNULL,
    )
    try:
        manager.wait_for("READY=1")
        manager.wait_for("WATCHDOG=1")
        manager.wait_for("WATCHDOG=1")
        daemon.send_signal(signal.SIGUSR1)
        # Opens when the handler has opened the other end; and the handler waits for this one to close.
        writing = os.open(gate, os.O_WRONLY)
        manager.drain()
        assert not manager.hears_within(2 * interval), "a manager that waits for so long restarts it"
        os.close(writing)
        manager.wait_for("WATCHDOG=1")
        daemon.send_signal(signal.SIGHUP)
        manager.wait_for("RELOADING=1")
        manager.wait_for("READY=1")
        daemon.send_signal(signal.SIGTERM)
        manager.wait_for("STOPPING=1")
        assert daemon.wait(timeout=60) == 0
    finally:
        daemon.kill()
        daemon.wait()
