"""A host of several users, as far as root can play it on one machine: users, groups, sockets, a daemon as a service.

It lives in a mount namespace of its own, where /etc/passwd and /etc/group know its users, and where these can read the
interpreter that runs the tests, wherever it is. Nothing of the real host is changed.
"""

import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

import compilepool
from compilepool.client import Pool, connect
from tests.conftest import Log, wait_gone

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class User:
    """One of the host's users; `groups` beside the own."""

    name: str
    uid: int
    groups: tuple[int, ...] = ()


GROUPS = {"compilepool": 64200, "compilepool-admin": 64201, "gpu": 64202}
ALICE, BOB, CAROL = User("alice", 64001, (64202,)), User("bob", 64002, (64202,)), User("carol", 64003, (64201,))
# Of a container, as which its programs run; to the host it is its own root.
ROOT = User("root", 0)
SERVICE, BACKEND = User("compilepool", 64100), User("compilepool-backend", 64101, (64200,))
USERS = (ALICE, BOB, CAROL, SERVICE, BACKEND)


class Host:
    """See the module's docstring; made by `a_host`."""

    def __init__(self, folder: Path, namespace: int | None) -> None:
        self.folder = folder
        self.run = folder / "run"
        self.socket = self.run / "pool.sock"
        self.settings = folder / "compilepool.toml"
        self.store = folder / "state"
        self._namespace = namespace
        self._started: list[subprocess.Popen[str]] = []

    def home(self, user: User) -> Path:
        """A directory that only this user may enter."""
        return self.folder / "home" / user.name

    def command(self, user: User, *arguments: str) -> list[str]:
        """What runs this as the user, in the host's namespace, with no right but the user's own."""
        groups = ["--groups", ",".join(map(str, user.groups))] if user.groups else ["--clear-groups"]
        enter = ["nsenter", f"--mount=/proc/{self._namespace}/ns/mnt", "--"] if self._namespace else []
        become = ["setpriv", "--reuid", str(user.uid), "--regid", str(user.uid), *groups, "--inh-caps=-all", "--"]
        return [*enter, *become, *arguments]

    def environment(self, user: User) -> dict[str, str]:
        """A fresh login's."""
        home = self.home(user)
        kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES") if name in os.environ}
        return {
            **kept,
            "HOME": str(home),
            "TMPDIR": str(home / "tmp"),
            "PATH": os.environ["PATH"],
            "COMPILEPOOL_SOCKET": str(self.socket),
            "TORCHINDUCTOR_CACHE_DIR": str(home / "inductor"),
            "TRITON_CACHE_DIR": str(home / "triton"),
        }

    def start(self, user: User, *arguments: str, **options: Any) -> "subprocess.Popen[str]":
        """A process of this user's, ended with the host."""
        options = {"env": self.environment(user), "cwd": "/", "text": True, **options}
        started = subprocess.Popen(self.command(user, *arguments), **options)
        self._started.append(started)
        return started

    def contained(self, name: str, code: str, *arguments: str) -> Any:
        """What code says that runs as root in a container: mounts and network of its own, one socket mounted into it.

        name: of the socket's namespace
        """
        inside = self.folder / "containers"
        command = self.command(ROOT, "unshare", "--mount", "--net", "--propagation", "private", "sh", "-c")
        command += [f'mount --bind {self.run}/{name}.sock {inside}/pool.sock && exec "$@"', "sh"]
        command += [sys.executable, "-P", "-c", source(code), *arguments]
        environment = {**self.environment(ROOT), "COMPILEPOOL_SOCKET": f"{inside}/pool.sock"}
        done = subprocess.run(
            command, env=environment, cwd="/", capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def python(self, user: User, code: str, *arguments: str, **variables: str) -> Any:
        """What `tell(...)` was told by this code, run by the user; json both ways."""
        done = self._done(user, {**self.environment(user), **variables}, "-c", source(code), *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1]) if done.stdout else None

    def cli(self, user: User, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """`compilepool ARGUMENTS`, run by the user."""
        environment = {**self.environment(user), "PYTHONPATH": str(REPOSITORY)}
        return self._done(user, environment, "-m", "compilepool", *arguments)

    def _done(self, user: User, environment: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = self.command(user, sys.executable, "-P", *arguments)
        return subprocess.run(
            command, env=environment, cwd="/", capture_output=True, text=True, timeout=200, check=False
        )

    def give_home(self, user: User) -> None:
        """Another user comes, whom /etc/passwd does not know."""
        for made in (self.home(user), self.home(user) / "tmp"):
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.chown(made, user.uid, user.uid)

    def close(self) -> None:
        """End everything that runs as one of its users."""
        uids, ours = range(64000, 64200), str(self.folder)
        left = []
        for process in psutil.process_iter():
            try:
                if process.uids().real in uids or any(ours in argument for argument in process.cmdline()):
                    process.kill()
                    left.append(process)
            except psutil.NoSuchProcess:
                continue
        for started in self._started:
            started.kill()
            started.wait(timeout=60)
            for stream in (started.stdin, started.stdout):
                if stream is not None:
                    stream.close()
        wait_gone(*left)


class Service:
    """The daemon of a host, started as a service manager starts it: its sockets are there before, and stay."""

    def __init__(self, host: Host, settings: str, *options: str, namespaces: Sequence[str] = ()) -> None:
        self.host = host
        self._options = options
        host.settings.write_text(settings)
        self._sockets = [_listening(host.run / name) for name in ("pool.sock", *(f"{n}.sock" for n in namespaces))]
        self._names = ":".join(("host", *namespaces))
        self.begin()

    def begin(self) -> None:
        """Start the daemon, and wait until it serves."""
        self.process, self.log = self._start()
        self.log.wait_for("event=serving")

    def _start(self) -> "tuple[subprocess.Popen[str], Log]":
        host, count = self.host, len(self._sockets)
        variables = f"LISTEN_PID=$$ LISTEN_FDS={count} LISTEN_FDNAMES={self._names}"
        serve = [sys.executable, "-P", "-m", "compilepool", "serve", "--config", str(host.settings)]
        serve += ["--store", str(host.store), "--slots", "2", *self._options]
        # Numbers from 3 on, in the order of the names.
        moves = " ".join(f"{3 + n}<&{held.fileno()}" for n, held in enumerate(self._sockets) if held.fileno() != 3 + n)
        script = f'export {variables}; exec "$@" {moves}'
        started = host.start(
            SERVICE, "bash", "-c", script, "bash", *serve,
            stderr=subprocess.PIPE, pass_fds=[held.fileno() for held in self._sockets],
            env={**host.environment(SERVICE), "PYTHONPATH": str(REPOSITORY)},
        )  # fmt: skip
        return started, Log(started)

    def backend(self) -> None:
        """Start a backend, and wait until it is ready."""
        environment = {**self.host.environment(BACKEND), "PYTHONPATH": str(REPOSITORY)}
        command = [sys.executable, "-P", "-m", "compilepool", "backend"]
        self.host.start(BACKEND, *command, env=environment, stderr=subprocess.DEVNULL)
        self.log.wait_for("event=ready user=64101")

    def reload(self, settings: str) -> None:
        """Change the configuration, and have it read again."""
        self.host.settings.write_text(settings)
        self.process.send_signal(signal.SIGHUP)
        self.log.wait_for("event=reloaded")

    def pool(self) -> Pool:
        """As root, who is an administrator."""
        return connect(self.host.socket, autostart=False, fallback=False)

    def restart(self) -> None:
        """As `systemctl restart`: the sockets stay, the next daemon comes when the last has gone."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=120) == 0
        self.log.close()
        self.begin()

    def process_uid(self) -> int:
        """As whom it runs."""
        return int(psutil.Process(self.process.pid).uids().real)

    def close(self) -> None:
        """End the daemon; what its users run ends with the host."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(timeout=60)
        self.log.close()
        for held in self._sockets:
            held.close()


def source(code: str) -> str:
    """The code as a program, with `tell` and the modules of these tests."""
    tell = "def tell(value): print(json.dumps(value), flush=True)\n"
    return f"import json, os, sys; sys.path.insert(0, {str(REPOSITORY)!r})\n{tell}{code}"


@contextmanager
def a_host(*, names: bool = True) -> Iterator[Host]:
    """A host in a namespace of its own; skips the test where that can't be had.

    names: without, its users have numbers only, and it needs no namespace; then they must be able to run Python here
    """
    if os.getuid() != 0:
        pytest.skip("needs root, to be several users")
    folder = Path(tempfile.mkdtemp(prefix="compilepool-host-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        _furnish(folder)
        with _namespace(folder) if names else nullcontext() as namespace:
            host = Host(folder, namespace)
            try:
                yield host
            finally:
                host.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _furnish(folder: Path) -> None:
    (folder / "run").mkdir()
    (folder / "containers").mkdir()
    (folder / "containers" / "pool.sock").touch()
    for path, user in [(folder / "state", SERVICE), *((folder / "home" / user.name, user) for user in (*USERS, ROOT))]:
        for made in (path, path / "tmp"):
            made.mkdir(mode=0o700, parents=True)
            os.chown(made, user.uid, user.uid)
    users = "".join(f"{u.name}:x:{u.uid}:{u.uid}::{folder}/home/{u.name}:/bin/sh\n" for u in USERS)
    groups = "".join(f"{name}:x:{gid}:\n" for name, gid in GROUPS.items())
    groups += "".join(f"{u.name}:x:{u.uid}:\n" for u in USERS if u.name not in GROUPS)
    (folder / "passwd").write_text(Path("/etc/passwd").read_text() + users)
    (folder / "group").write_text(Path("/etc/group").read_text() + groups)


@contextmanager
def _namespace(folder: Path) -> Iterator[int]:
    """The number of a process that holds a mount namespace, where `folder`'s users are known and can run Python."""
    mounts = [f"mount --bind {folder}/{name} /etc/{name}" for name in ("passwd", "group")]
    mounts += _opened(folder / "opened")
    script = " && ".join(["set -e", *mounts, "echo ready", "exec sleep infinity"])
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        if holder.stdout.readline() != "ready\n":
            pytest.skip(f"no mount namespace can be made here: {holder.communicate()[1].strip()}")
        yield holder.pid
    finally:
        holder.kill()
        holder.communicate()


def _opened(stage: Path) -> list[str]:
    """Commands that let everybody read the interpreter and its packages, where a directory above is closed."""
    commands: dict[str, None] = {}
    closed: dict[Path, None] = {}
    needed = dict.fromkeys(Path(p).resolve() for p in _needed())
    hidden = [path for path in needed if (above := _closed_above(path)) and closed.setdefault(above) is None]
    for number, path in enumerate(hidden):
        stage.joinpath(str(number)).mkdir(parents=True)
        commands[f"mount --bind {path} {stage}/{number}"] = None
    for above in closed:
        commands[f"mount -t tmpfs -o mode=755 tmpfs {above}"] = None
    for number, path in enumerate(hidden):
        commands[f"mkdir -p {path} && mount --bind {stage}/{number} {path}"] = None
    return list(commands)


def _needed() -> Iterator[str]:
    for module in ("triton", "torch", "msgspec"):
        spec = __import__("importlib.util").util.find_spec(module)
        yield str(Path(spec.origin).parents[1])
    yield from (sys.prefix, sys.base_prefix, str(REPOSITORY), str(Path(compilepool.__file__).parents[1]))


@functools.cache
def _closed_above(path: Path) -> Path | None:
    """The uppermost directory on the way that others may not pass."""
    return next((above for above in [*path.parents][::-1] if not above.stat().st_mode & 0o001), None)


def _listening(path: Path) -> socket.socket:
    held = socket.socket(socket.AF_UNIX)
    held.bind(str(path))
    path.chmod(0o666)
    held.listen(1024)
    return held
