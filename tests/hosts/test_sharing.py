"""The shared tier: what the backend makes of one user's TTIR is every user's; nobody can put anything else there."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.hosts.conftest import SHARED
from tests.hosts.host import ALICE, BOB, CAROL, Host, Service

COMPILE = """
import compilepool, hashlib
from tests.sources import pointwise
from compilepool.corpus import for_target
kernel = pointwise(sys.argv[1])
if len(sys.argv) > 2:
    kernel = for_target(kernel, sys.argv[2])
with compilepool.connect(autostart=False, fallback=False) as pool:
    answer = pool.warm(kernel.name, kernel.source).result(timeout=150)
    contents = pool.read_object(next(info.key for info in pool.objects() if info.kernel == kernel.name))
    files = [name for unit in contents[0].contents.units for name in unit.files]
    binaries = [part for name, part in zip(files, contents[1][1:]) if name.endswith(("cubin", "hsaco"))]
    tell([answer.origin, [hashlib.sha256(part).hexdigest() for part in binaries]])
"""
# A forkserver of Bob's own making, which tells the daemon what it likes.
LIAR = """
from pathlib import Path
import socket
from compilepool.daemon.worker.link import attach
from compilepool.protocol import messages as m
from compilepool.protocol.detect import detect
import compilepool, msgspec, threading
from tests.sources import pointwise
toolchain = msgspec.structs.replace(detect(), compilepool="a liar's")
link = attach(Path(os.environ["COMPILEPOOL_SOCKET"]), toolchain)
link.socket.setblocking(True)
link.post(m.Ready(0.1))
from compilepool.options import Options
from compilepool.link import open_link
client = open_link(Options(Path(os.environ["COMPILEPOOL_SOCKET"]), autostart=False), toolchain, lambda link: None)
kernel = pointwise("a_lure")
client.request(lambda n: m.Compile(n, m.Recipe(kernel.name, {}, {})), lambda *_: None, (kernel.source.encode(),))
def next_of(kind):
    while True:
        for message, segments in link.read():
            if isinstance(message, m.Refusal):
                raise RuntimeError(message.failure.message)
            if isinstance(message, kind):
                return message, segments
spawn, _ = next_of(m.Spawn)
digest = spawn.backends[0] if spawn.backends else ""
"""


def shared(service: Service) -> tuple[int, int]:
    """What the backend has compiled, and has answered from the store."""
    with service.pool() as pool:
        counted = {user.user: user for user in pool.status().users}
        compiled = [e for e in pool.events() if e.name == "compiled" and e.fields.get("user") == "shared"]
    return len(compiled), counted["shared"].requests if "shared" in counted else 0


def test_the_backend_runs_once_for_two_users(host: Host, service: Service) -> None:
    service.backend()
    first, alices = host.python(ALICE, COMPILE, "common")
    assert shared(service) == (len(alices), len(alices))
    again, bobs = host.python(BOB, COMPILE, "common")
    assert (first, again) == ("compiled", "compiled"), "the frontend runs for each, as each"
    assert shared(service) == (len(alices), 2 * len(alices)), "the backend ran once"
    assert alices == bobs
    listed = host.cli(CAROL, "cache", "list", "--user", "shared")
    assert listed.stdout.count("common") == len(alices), listed.stderr


HANDWRITTEN = """
import hashlib, importlib.util
from pathlib import Path
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource
from compilepool.client import Pool
from compilepool.options import Options
from compilepool.triton.compilation import Compilation
from compilepool.triton.compiler import Compiler
file = Path.home() / "mine.py"
file.write_text(chr(10).join((
    "import triton, triton.language as tl", "@triton.jit", "def doubled(x, out, B: tl.constexpr):",
    "    at = tl.arange(0, B)", "    tl.store(out + at, tl.load(x + at) * 2)")) + chr(10))
spec = importlib.util.spec_from_file_location("mine", file)
mine = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mine)
source = ASTSource(mine.doubled, {"x": "*fp32", "out": "*fp32", "B": "constexpr"}, {"B": 64})
options = Options(Path(os.environ["COMPILEPOOL_SOCKET"]), autostart=False, with_torch=False)
compiler = Compiler(Pool(options))
kernel = compiler.submit(Compilation(source, GPUTarget("cuda", 90, 32), {})).result(timeout=150)
tell([kernel._compilepool_unit is not None, hashlib.sha256(kernel.asm["cubin"]).hexdigest()])
"""


def test_kernels_written_by_hand_are_shared_wherever_their_files_are(host: Host, service: Service) -> None:
    service.backend()
    alices = host.python(ALICE, HANDWRITTEN)
    assert alices[0] and shared(service) == (1, 1)
    assert host.python(BOB, HANDWRITTEN) == alices
    assert shared(service) == (1, 2), "the backend ran once"


@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942"])
def test_without_a_backend_each_compiles_alone_to_the_same_bytes(
    host: Host, serve: Callable[..., Service], target: str
) -> None:
    """Bit for bit, when the line tables name the same file."""
    service = serve(SHARED)
    variables = {"TORCHINDUCTOR_CACHE_DIR": "/torchinductor"}
    _, private = host.python(ALICE, COMPILE, "compared", target, **variables)
    assert shared(service) == (0, 0)
    service.backend()
    origin, made = host.python(BOB, COMPILE, "compared", target, **variables)
    assert origin == "compiled"
    assert shared(service)[0] == len(made) > 0
    assert made == private


def test_a_variable_that_changes_the_backend_is_compiled_alone(host: Host, service: Service) -> None:
    service.backend()
    host.python(ALICE, COMPILE, "plain", DISABLE_PTXAS_OPT="1")
    assert shared(service) == (0, 0)


def test_a_tampered_request_is_nobody_elses(host: Host, service: Service) -> None:
    """Other TTIR has another key, whatever its name; a claimed toolchain, option or job is refused."""
    service.backend()
    _, alices = host.python(ALICE, COMPILE, "wanted")
    told = host.python(
        BOB,
        LIAR
        + """
options = '{"num_warps": 4}'
def ask(n, task, ttir, backend=digest, job=spawn.job):
    link.post(m.Lower(n, job, task, backend), (ttir,))
    answer, _ = next_of((m.Compiled, m.Failed))
    return answer.failure.message if isinstance(answer, m.Failed) else answer.origin
task = m.Lowering("wanted", "cuda:90:32", options)
said = [
    ask(1, task, b"module { tampered }"),
    ask(2, task, b"module {}", backend="0" * 64),
    ask(3, m.Lowering("wanted", "cuda:90:32", '{"extern_libs": [["x", "/etc/shadow"]]}'), b"module {}"),
    ask(4, m.Lowering("wanted", "no target at all", options), b"module {}"),
]
try:
    said.append(ask(5, task, b"module {}", job=spawn.job + 1))
except Exception as exc:
    said.append(str(exc))
tell(said)
""",
    )
    assert all("its TTIR can't be compiled" in told[which] for which in (0, 2, 3)), told
    assert "shadow" not in told[2]
    assert "no backend of this toolchain" in told[1]
    assert "was not given to this forkserver" in told[4]
    assert host.python(CAROL, COMPILE, "wanted")[1] == alices


def test_what_a_worker_returns_is_no_shared_result(host: Host, service: Service) -> None:
    """Only a backend answers for the shared tier: a user's forkserver has no job there to answer."""
    service.backend()
    told = host.python(
        BOB,
        LIAR
        + """
from compilepool.protocol.contents import checksum
def result(directory, file):
    unit = m.Unit("", "", directory, [file])
    return m.Contents([unit], [], [checksum(b""), checksum(b"")], m.Cost(0.0, 0.0, 0))
link.post(m.JobDone(spawn.job + 1, result("a" * 32, "x.cubin")), (b"", b""))
try:
    tell(str(link.read()))
except Exception as exc:
    tell(str(exc))
""",
    )
    assert "was not given to this forkserver" in told
    assert shared(service) == (0, 0)


def test_names_that_are_no_plain_files_are_refused(host: Host, service: Service) -> None:
    names: list[Any] = [["../../../etc", "x"], ["a" * 32, "../x"], ["a" * 32, "/etc/passwd"], ["..", "x"], ["", "x"]]
    for directory, file in names:
        told = host.python(
            BOB,
            LIAR
            + f"""
from compilepool.protocol.contents import checksum
unit = m.Unit("", "", {directory!r}, [{file!r}])
contents = m.Contents([unit], [], [checksum(b""), checksum(b"")], m.Cost(0.0, 0.0, 0))
link.post(m.JobDone(spawn.job, contents), (b"", b""))
try:
    tell(str(link.read()))
except Exception as exc:
    tell(str(exc))
""",
        )
        assert "is no name of a cache" in told
    assert host.python(BOB, COMPILE, "after_it")[0] == "compiled"
