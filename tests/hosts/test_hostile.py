"""What hostile sources, pickles and forkservers reach: their own user, and not even all of that."""

import socket
import subprocess
import sys
from typing import Any

import psutil
import pytest

from tests.conftest import eventually_equal
from tests.hosts.host import ALICE, BOB, REPOSITORY, Host, Service
from tests.hosts.test_sharing import LIAR
from tests.hosts.test_users import COMPILE
from tests.sources import pointwise

# Executed as a kernel's source: what it found out comes back in the error's message.
SOURCE = """
import ctypes, json, os, signal, socket, subprocess
told = {}
def attempt(name, call):
    try:
        told[name] = repr(call())
    except BaseException as exc:
        told[name] = f"{type(exc).__name__} {getattr(exc, 'errno', '')}"
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    done = libc.syscall(*arguments)
    if done < 0:
        raise OSError(ctypes.get_errno(), "")
    return done
def abstract(bind):
    held = socket.socket(socket.AF_UNIX)
    (held.bind if bind else held.connect)("\\0compilepool-rendezvous")
    return held
"""
ATTEMPTS = (
    SOURCE
    + """
attempt("read another's file", lambda: open(ALICES).read())
attempt("write at home", lambda: open(HOME + "/planted", "w"))
attempt("write in shared memory", lambda: open("/dev/shm/compilepool-planted", "w"))
attempt("write the store", lambda: open(STORE + "/planted", "w"))
attempt("make a link", lambda: os.symlink("/etc/passwd", HOME + "/link"))
attempt("tcp", lambda: socket.create_connection(("127.0.0.1", PORT), timeout=5))
attempt("udp", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
attempt("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
attempt("abstract", lambda: abstract(bind=False))
attempt("signal its forkserver", lambda: os.kill(os.getppid(), 0))
attempt("signal the daemon", lambda: os.kill(DAEMON, signal.SIGTERM))
attempt("trace its forkserver", lambda: call(101, 16, os.getppid(), 0, 0))
attempt("memory of its forkserver", lambda: open(f"/proc/{os.getppid()}/mem", "rb"))
attempt("namespaces", lambda: call(272, 0x10000000))
attempt("system v memory", lambda: call(29, 7, 4096, 0o1600))
told["no_new_privs"] = libc.prctl(39, 0, 0, 0, 0)
told["setuid"] = subprocess.run(["su", "-c", "id", "root"], capture_output=True, text=True, stdin=-3).returncode
told["write in scratch"] = open(os.environ["TMPDIR"] + "/mine", "w").write("x")
raise RuntimeError("<" + json.dumps(told) + ">")
"""
)
DENIED = (
    "read another's file", "write at home", "write in shared memory", "write the store", "make a link", "tcp", "udp",
    "netlink", "abstract", "signal its forkserver", "signal the daemon", "trace its forkserver",
    "memory of its forkserver", "namespaces", "system v memory",
)  # fmt: skip

RUN = """
import compilepool, json
with compilepool.connect(autostart=False, fallback=False) as pool:
    error = str(pool.warm("hostile", sys.stdin.read(), timeout=15).exception(timeout=150))
tell(json.loads(error.split("<", 1)[1].split(">")[0]) if "<" in error else error)
"""


def run_source(host: Host, source: str) -> Any:
    """What Bob's kernel found out."""
    path = host.home(BOB) / "source.py"
    path.write_text(source)
    path.chmod(0o644)
    return host.python(BOB, f"sys.stdin = open({str(path)!r})\n{RUN}")


def test_a_hostile_source_reaches_nothing(host: Host, service: Service) -> None:
    secret = host.home(ALICE) / "secret"
    secret.write_text("hers")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as rendezvous:
        rendezvous.bind("\0compilepool-rendezvous")
        rendezvous.listen()
        names = (
            f"ALICES, HOME, STORE = {str(secret)!r}, {str(host.home(BOB))!r}, {str(host.store)!r}\n"
            f"PORT, DAEMON = {server.getsockname()[1]}, {service.process.pid}\n"
        )
        told = run_source(host, names + ATTEMPTS)
    assert {name: told[name] for name in DENIED if "Error" not in told[name]} == {}
    assert told["no_new_privs"] == 1
    assert told["setuid"] != 0
    assert told["write in scratch"] == 1
    assert host.python(ALICE, COMPILE, "after_it")[0] == "compiled"


def test_a_hostile_pickle_runs_as_who_sent_it(host: Host, service: Service) -> None:
    """A callable is its program's own code: it has the rights of its user, and of nobody else."""
    secret = host.home(ALICE) / "secret"
    secret.write_text("hers")
    told = host.python(
        BOB,
        """
import cloudpickle
from concurrent.futures import Future
from compilepool.client import connect
from compilepool.protocol import messages as m
def hostile(path, daemon):
    import ctypes, os
    said = [os.getuid(), os.getgroups(), ctypes.CDLL(None).prctl(39, 0, 0, 0, 0)]
    for attempt in (lambda: open(path).read(), lambda: os.kill(daemon, 9)):
        try:
            said.append(str(attempt()))
        except OSError as exc:
            said.append(type(exc).__name__)
    return said
import functools
future = Future()
cloudpickle.register_pickle_by_value(sys.modules["__main__"])
call = cloudpickle.dumps(functools.partial(hostile, sys.argv[1], int(sys.argv[2])))
def answered(answer, segments):
    future.set_result(cloudpickle.loads(segments[0]) if isinstance(answer, m.Compiled) else str(answer))
with connect(autostart=False, fallback=False) as pool:
    pool.link().request(lambda n: m.Execute(n, m.Call("hostile", {})), answered, (call,))
    tell(future.result(timeout=150))
""",
        str(secret),
        str(service.process.pid),
    )
    assert told == [BOB.uid, list(BOB.groups), 1, "PermissionError", "PermissionError"]


@pytest.mark.slow
def test_what_a_worker_leaves_must_be_plain_files(host: Host, service: Service) -> None:
    """A link, a second name or a pipe in the place of a binary is refused, and not read."""
    hook = """
import os, triton.runtime.cache as cache
put = cache.FileCacheManager.put
def plant(self, data, filename, binary=True):
    path = put(self, data, filename, binary)
    if filename.endswith(".cubin"):
        os.rename(path, path + ".real")
        ACTION
    return path
cache.FileCacheManager.put = plant
"""
    actions = {
        "symlink": "os.symlink('/etc/passwd', path)",
        "hardlink": "os.link(path + '.real', path)",
        "fifo": "os.mkfifo(path)",
    }
    for name, action in actions.items():
        kernel = pointwise(f"leaves_a_{name}", prelude=hook.replace("ACTION", action))
        told = run_source(host, kernel.source.replace(f"def {kernel.name}", "def hostile"))
        # Triton itself opens the pipe, in the very process that made it.
        assert "is no plain file" in told or (name == "fifo" and "its time limit" in told), (name, told)
    assert host.python(BOB, COMPILE, "after_them")[0] == "compiled"


def test_a_lying_forkserver_harms_its_own_user_alone(host: Host, service: Service) -> None:
    assert host.python(ALICE, COMPILE, "before_it")[0] == "compiled"
    # Under the very name of Alice's toolchain, and answering nothing.
    code = LIAR.replace('compilepool="a liar\'s"', "compilepool=detect().compilepool")
    flood = """
import itertools
for n in itertools.count():
    try:
        link.post(m.Progress(spawn.job, n % 7))
        link.flush()
    except Exception as exc:
        tell(str(exc))
        break
    if n == 20000:
        tell("flooded")
        break
print(sys.stdin.read())
"""
    prelude = (
        f"import json, os, sys; sys.path.insert(0, {str(REPOSITORY)!r})\ndef tell(value): print(value, flush=True)\n"
    )
    held = host.start(
        BOB, sys.executable, "-P", "-c", prelude + code + flood, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert held.stdout is not None
    assert held.stdout.readline() == "flooded\n"
    assert host.python(ALICE, COMPILE, "beside_it")[0] == "compiled"
    with service.pool() as pool:
        users = {user.user: user for user in pool.status().users}
    assert (users["64001"].running, users["64002"].running) == (0, 1), "it holds a slot of Bob's, and nothing else"
    held.communicate("")
    assert host.python(BOB, COMPILE, "after_it")[0] == "compiled"


def test_descriptors_that_are_passed_go_nowhere(host: Host, service: Service) -> None:
    daemon = psutil.Process(service.process.pid)
    host.python(BOB, "tell(0)")
    before = daemon.num_fds()
    told = host.python(
        BOB,
        """
import array, socket
held = socket.socket(socket.AF_UNIX)
held.connect(os.environ["COMPILEPOOL_SOCKET"])
mine = [os.open("/dev/null", os.O_RDONLY) for _ in range(50)]
socket.send_fds(held, [b"CPL1"], mine)
held.send(b"nonsense")
said = b"".join(iter(lambda: held.recv(4096), b""))
tell("refusal" in str(said))
""",
    )
    assert told is True
    eventually_equal(daemon.num_fds, before)


def test_one_user_can_not_use_up_the_daemons_connections(host: Host, service: Service) -> None:
    """Neither its memory: what one user's connections make it hold is bounded together."""
    told = host.python(
        BOB,
        """
import resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
held = []
for _ in range(4100):
    one = socket.socket(socket.AF_UNIX)
    one.connect(os.environ["COMPILEPOOL_SOCKET"])
    held.append(one)
last = b""
while b"4096 connections" not in last:
    chunk = held[-1].recv(4096)
    last += chunk
    assert chunk, last
tell("refused")
""",
    )
    assert told == "refused"
    assert host.python(ALICE, COMPILE, "beside_them")[0] == "compiled"
