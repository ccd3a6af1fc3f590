"""Attacks that worked once."""

import contextlib
import itertools
import re
from pathlib import Path
from typing import Any

import psutil
import pytest

from compilepool.client import connect
from tests.hosts.host import ALICE, BACKEND, BOB, CAROL, SERVICE, Host, Service
from tests.hosts.test_hostile import SOURCE, run_source
from tests.hosts.test_sharing import COMPILE as SHARED_COMPILE, LIAR, shared
from tests.hosts.test_users import COMPILE

# Some wait for what a daemon gives up after 20 s.
pytestmark = pytest.mark.slow

TELL_END = """
try:
    while True:
        told = link.read()
        if any(isinstance(message, m.Refusal) for message, _ in told):
            tell(str(told))
            break
except Exception as exc:
    tell(str(exc))
"""


def goes_on(host: Host, service: Service, name: str) -> None:
    """The daemon is there, and serves others."""
    assert service.process.poll() is None
    assert host.python(ALICE, COMPILE, name)[0] == "compiled"


@pytest.mark.parametrize(
    "message",
    [
        "m.Progress(spawn.job, -1)",
        "m.Progress(spawn.job, 10**12)",
        "m.Ready(0.1, [' '])",
        "m.Ready(0.1, ['x' * 10**6])",
        "m.JobFailed(spawn.job, Failure('timeout', 'x'), m.Cost(0.0, -1e6, 0))",
        "m.JobFailed(spawn.job, Failure('timeout', 'x'), m.Cost(0.0, float('nan'), 0))",
    ],
)
def test_one_odd_message_ends_nobody_else(host: Host, serve: Any, message: str) -> None:
    service = serve('[access]\n[sandbox]\nrequire = ["landlock"]\n')
    code = LIAR.replace("m.Ready(0.1)", "m.Ready(0.1, ['landlock 7'])")
    host.python(BOB, f"{code}\nfrom compilepool.protocol.errors import Failure\nlink.post({message})\n{TELL_END}")
    goes_on(host, service, "after_it")


def test_a_job_that_was_given_back_is_answered_no_more(host: Host, service: Service) -> None:
    """It may run again, for somebody who allows more time; what the first forkserver says then is about nothing."""
    told = host.python(
        BOB,
        LIAR
        + """
from compilepool.protocol.errors import Failure
link.post(m.JobFailed(spawn.job, Failure("timeout", "x"), m.Cost(0.0, 0.0, 0)))
link.post(m.Progress(spawn.job, 3))
"""
        + TELL_END,
    )
    assert "was not given to this forkserver" in told
    goes_on(host, service, "after_it")


def test_a_kernels_source_can_not_ask_the_daemon(host: Host, service: Service) -> None:
    """It would have it call a callable, which runs without a sandbox."""
    told = run_source(
        host,
        SOURCE
        + """
def through_the_daemon():
    held = socket.socket(socket.AF_UNIX)
    held.connect(os.environ.get("COMPILEPOOL_SOCKET", "/"))
attempt("daemon", through_the_daemon)
attempt("chmod", lambda: os.chmod(os.environ["TMPDIR"], 0o777))
attempt("limits", lambda: __import__("resource").prlimit(os.getppid(), 1, (0, 0)))
attempt("own limits", lambda: __import__("resource").getrlimit(1))
attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, os.getppid(), 19))
attempt("processors", lambda: os.sched_setaffinity(os.getppid(), {0}))
raise RuntimeError("<" + json.dumps(told) + ">")
""",
    )
    denied = ("daemon", "chmod", "limits", "priority", "processors")
    assert {name: told[name] for name in denied if "Error" not in told[name]} == {}
    assert "Error" not in told["own limits"]


def test_a_backends_workers_remember_nobody(host: Host, service: Service) -> None:
    """They are forked from the process through whose hands everybody's TTIR has gone."""
    service.backend()
    host.python(ALICE, SHARED_COMPILE, "alices_secret_kernel")
    host.python(BOB, SHARED_COMPILE, "bobs_kernel")
    assert shared(service)[0] >= 2
    idle = [process for process in psutil.process_iter() if is_idle_worker(process)]
    assert idle
    # A name alone may be left on a stack; what is overwritten is so with this byte.
    text = rb"tt\.func[^\0]{0,30}alices_secret|alices_secret_kernel[^\0\xa5]{8,40}"
    found = [match for process in idle for match in remembered(process.pid, text)]
    assert found == []


def is_idle_worker(process: psutil.Process) -> bool:
    try:
        return bool(process.uids().real == BACKEND.uid and process.name() == "cpool-idle")
    except psutil.Error:
        return False


def remembered(pid: int, pattern: bytes) -> list[bytes]:
    """What its private memory holds of this."""
    found = []
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    with Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for line in maps:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            if "rw-p" in line and "[v" not in line:
                with contextlib.suppress(OSError):
                    memory.seek(start)
                    found += re.findall(pattern, memory.read(end - start))
    return found


def test_what_a_job_asked_of_the_backend_ends_with_it(host: Host, service: Service) -> None:
    """Otherwise a forkserver has as many backend's workers run as it likes, without a slot."""
    service.backend()
    host.python(
        BOB,
        LIAR
        + """
from compilepool.protocol.contents import checksum
from compilepool.protocol.errors import Failure
empty = m.Contents([], [], [checksum(b"")], m.Cost(0.0, 0.0, 0))
asked = 0
for round in range(20):
    asked += 1
    link.post(m.Lower(asked, spawn.job, m.Lowering("x", "cuda:90:32", "{}"), digest), (b"module { %d }" % round,))
    link.post(m.JobDone(spawn.job, empty), (b"",))
    client.request(lambda n: m.Compile(n, m.Recipe("lure", {}, {})), lambda *_: None, (b"# %d" % round,))
    spawn, _ = next_of(m.Spawn)
tell(asked)
""",
    )
    with service.pool() as pool:
        counters = pool.status().counters
        users = {user.user: user for user in pool.status().users}
    assert counters["cancelled"] > 0
    assert users["shared"].running == 0
    goes_on(host, service, "beside_it")


def test_an_assistant_that_never_ends_costs_its_forkserver(host: Host, service: Service) -> None:
    told = host.python(
        BOB,
        # Long enough to be worth an assistant.
        LIAR.replace("kernel.source.encode()", "(kernel.source + '#' * 20000).encode()")
        + """
from compilepool.protocol.contents import checksum
link.post(m.Progress(spawn.job, 5))
next_of(m.Assist)
link.post(m.JobDone(spawn.job, m.Contents([], [], [checksum(b"")], m.Cost(0.0, 0.0, 0))), (b"",))
retired, _ = next_of(m.Retire)
tell(retired.reason)
""",
    )
    assert "a worker that assisted goes on though its job is over" in told
    with service.pool() as pool:
        assert pool.status().running == 0


def test_nobody_counts_the_jobs_of_others(host: Host, service: Service) -> None:
    """Job numbers are told in disguise: the next is as likely before as after."""
    told = host.python(
        BOB,
        LIAR
        + """
from compilepool.protocol.contents import checksum
numbers = [spawn.job]
for round in range(5):
    link.post(m.JobDone(spawn.job, m.Contents([], [], [checksum(b"")], m.Cost(0.0, 0.0, 0))), (b"",))
    client.request(lambda n: m.Compile(n, m.Recipe("lure", {}, {})), lambda *_: None, (b"# %d" % round,))
    spawn, _ = next_of(m.Spawn)
    numbers.append(spawn.job)
tell(numbers)
""",
    )
    assert len(set(told)) == 6
    assert min(abs(a - b) for a, b in itertools.pairwise(told)) > 1000


def test_long_words_are_not_kept(host: Host, service: Service) -> None:
    """Reasons and messages of a megabyte, from connections that are gone."""
    before = psutil.Process(service.process.pid).memory_info().rss
    host.python(
        BOB,
        """
import msgspec, uuid
from pathlib import Path
from compilepool.link import open_link
from compilepool.options import Options
from compilepool.protocol import messages as m
from compilepool.protocol.detect import detect
options = Options(Path(os.environ["COMPILEPOOL_SOCKET"]), autostart=False)
for _ in range(100):
    toolchain = msgspec.structs.replace(detect(), platform=uuid.uuid4().hex)
    link = open_link(options, toolchain, lambda link: link.tell(m.StartFailed("x" * 10**6)))
    import threading
    done = threading.Event()
    link.request(m.Prepare, lambda *_: done.set())
    assert done.wait(60)
    link.close()
tell("done")
""",
    )
    assert psutil.Process(service.process.pid).memory_info().rss - before < 32 << 20


def test_a_reload_holds_for_who_is_connected(host: Host, service: Service) -> None:
    service.backend()
    with connect(host.socket, autostart=False, fallback=False) as pool:
        assert pool.status().administrator
        service.reload('[access]\nusers = ["alice"]\n')
        service.log.wait_for("event=left user=64101")
        assert pool.status().backends == []
        assert pool.status().administrator, "root is one, whatever the settings say"
    told = host.python(
        CAROL,
        """
from compilepool.client import connect
from compilepool.protocol.errors import PoolUnavailable, Refused
try:
    with connect(autostart=False, fallback=False) as pool:
        tell(pool.status().administrator)
except (PoolUnavailable, Refused) as exc:
    tell(str(exc))
""",
    )
    assert "has not let uid 64003 use it" in told
    assert SERVICE.uid == service.process_uid()


def test_pins_leave_room_for_others(host: Host, serve: Any) -> None:
    serve("[access]\n", "--store-size", "64KiB", "--store-free", "0")
    assert host.python(BOB, COMPILE, "first")[0] == "compiled"
    said = [host.cli(BOB, "cache", "pin", "*")]
    host.python(BOB, COMPILE, "second")
    said.append(host.cli(BOB, "cache", "pin", "*"))
    assert "at most half of the store" in said[0].stderr + said[1].stderr
    host.python(ALICE, COMPILE, "hers")
    assert host.python(ALICE, COMPILE, "hers")[0] == "store"
