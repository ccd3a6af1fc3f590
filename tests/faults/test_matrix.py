"""Every fault at every step: the error says what happened, nobody else notices, and nothing is left.

Each case holds a sibling in flight, lets a worker of another request meet the fault (`faulty`), and asserts the type of
the error, that the sibling finishes, that the next request succeeds, and that processes, descriptors and scratch files
are as before; the module ends with the memory of daemon and forkserver.
"""

import contextlib
import functools
import itertools
import operator
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pytest

from compilepool.client import Pool
from compilepool.future import PoolFuture
from compilepool.protocol import messages as m
from compilepool.protocol.errors import (
    CompileError,
    CompileOutOfMemory,
    CompilePoolError,
    CompileTimeout,
    WorkerCrashed,
)
from compilepool.protocol.messages import Compiled
from tests.conftest import Daemon, eventually_equal, wait_gone
from tests.faults.faulty import ACTIONS
from tests.sources import held, pointwise

pytestmark = pytest.mark.faults

STEPS = [
    "fork",
    "unpickling",
    "executing the source",
    "frontend",
    "llvm",
    "ptxas",
    "reading the binary",
    "pickling",
    "answering",
]
# A kernel's own exception is its error; one that is raised where no kernel runs ends the worker.
OUTSIDE_THE_KERNEL = ("fork", "answering")
ENDS: dict[str, tuple[type[CompilePoolError] | None, str]] = {
    "leave": (WorkerCrashed, "exited with status 1"),
    "leave_at_once": (WorkerCrashed, "exited with status 7"),
    "segfault": (WorkerCrashed, "SIGSEGV"),
    "be_killed": (WorkerCrashed, "SIGKILL"),
    "stop": (CompileTimeout, "time limit"),
    "ignore_sigterm": (CompileTimeout, "time limit"),
    "raise_unpicklable": (CompileError, "Unpicklable"),
    "loop": (CompileTimeout, "time limit"),
    "print_for_ever": (WorkerCrashed, "it printed .* and its limit is 16 MiB"),
    "grow": (CompileOutOfMemory, "MiB of memory, and its limit is 600 MiB"),
    "grow_in_a_child": (CompileOutOfMemory, "MiB of memory, and its limit is 600 MiB"),
    "leave_a_daemon": (None, ""),
}
HANGS = ("stop", "ignore_sigterm", "loop")
SLOTS = 2
DESCRIPTORS_OF_A_WORKER = 4
GROWTH_BYTES = 48 << 20


class Faulty:
    """A daemon with a forkserver whose workers follow a plan."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plan, self._taken, self._plans = folder / "plan", folder / "taken", 0
        self._taken.write_bytes(b"\0")
        self.scratch = folder / "tmp"
        self.scratch.mkdir()
        self.daemon = Daemon(folder, "--memory", "600")
        program = str(Path(__file__).with_name("faulty.py"))
        environment = {**os.environ, "TMPDIR": str(self.scratch)}
        # Not `-P`: it is a program beside nothing that it must not import.
        command = [sys.executable, program, str(self.daemon.socket), str(self.plan)]
        self._started = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.daemon.log.wait_for("event=ready")
        self.forkserver = psutil.Process(self._started.pid)
        self.pool = self.daemon.pool()
        # What is imported, opened and allocated once.
        for number in range(3):
            self.works(f"before_{number}")
        eventually_equal(lambda: len(self.forkserver.children()), SLOTS)
        self.before = self.footprint()
        self.memory_before = self.memory()

    def close(self) -> None:
        self.pool.close()
        self.daemon.close()
        self._started.wait(timeout=60)

    def make(self, action: str, step: str) -> None:
        """The next worker that comes to this step does this."""
        self._plans += 1
        beside = self.plan.with_name("plan.new")
        beside.write_text(f"{self._plans} {action} {step}")
        beside.rename(self.plan)

    def was_taken(self) -> bool:
        """Whether one did."""
        return self._taken.read_bytes()[0] == self._plans

    def works(self, name: str) -> None:
        kernel = pointwise(name)
        answer = self.pool.warm(kernel.name, kernel.source).result(timeout=120)
        assert isinstance(answer, Compiled)
        assert answer.origin == "compiled"

    def footprint(self) -> dict[str, Any]:
        """What must be the same after a fault; idle workers come and go, each with its descriptors."""
        strangers, workers = self.strangers(), self.forkserver.children()
        (root,) = self.scratch.glob("compilepool-scratch-*")
        return {
            "strangers": strangers,
            "forkserver's descriptors": self.forkserver.num_fds() - DESCRIPTORS_OF_A_WORKER * len(workers),
            "daemon's descriptors": psutil.Process(self.daemon.process.pid).num_fds(),
            "daemon's children": psutil.Process(self.daemon.process.pid).children(),
            "scratch": sorted(path.name for path in [*root.iterdir(), *self.scratch.iterdir()]),
        }

    def strangers(self) -> list[psutil.Process]:
        """What descends from the forkserver and is no idle worker."""
        found = []
        for process in self.forkserver.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name() != "cpool-idle":
                    found.append(process)
        return found

    def memory(self) -> int:
        daemon = psutil.Process(self.daemon.process.pid)
        return int(self.forkserver.memory_info().rss + daemon.memory_info().rss)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    running = Faulty(tmp_path_factory.mktemp("matrix"))
    yield running
    running.close()


def ask(pool: Pool, step: str, name: str, timeout: float | None) -> PoolFuture[Any]:
    """A request that comes to the step."""
    if step != "unpickling":
        return pool.warm(name, pointwise(name).source, timeout=timeout)
    future: PoolFuture[Any] = PoolFuture()

    def answered(answer: m.AnyMessage | CompilePoolError, segments: Any) -> None:
        if isinstance(answer, CompilePoolError):
            future.set_exception(answer)
        else:
            future.set_result(cloudpickle.loads(segments[0]))

    call = m.Call(name, {})
    pickled = cloudpickle.dumps(functools.partial(operator.add, 2, 3))
    pool.request(lambda number: m.Execute(number, call, timeout=timeout), (pickled,), answered, future)
    return future


@pytest.mark.parametrize(("step", "action"), list(itertools.product(STEPS, ACTIONS)))
def test_a_fault_is_one_requests_own(
    faulty: Faulty, tmp_path: Path, request: pytest.FixtureRequest, step: str, action: str
) -> None:
    name = f"{action}_at_{step.replace(' ', '_')}"
    sibling, gate = held(tmp_path, f"beside_{name}")
    beside = faulty.pool.compile_source(sibling.name, sibling.source)
    gate.wait_started()
    request.addfinalizer(lambda: beside.cancel())
    faulty.make(action, step)
    error, says = ENDS[action]
    if action == "raise_unpicklable" and step in OUTSIDE_THE_KERNEL:
        error, says = WorkerCrashed, "exited with status 1"
    if action == "leave" and step in ("unpickling", "executing the source"):
        error, says = CompileError, "SystemExit"

    future = ask(faulty.pool, step, name, timeout=1.0 if action in HANGS else None)

    if error is None:
        assert future.result(timeout=120)
    else:
        with pytest.raises(error, match=f"(?s)^{name}: .*{says}") as raised:
            future.result(timeout=120)
        if error is not CompileError:
            assert f"in phase {'starting' if step == 'fork' else step}" in str(raised.value)
    assert faulty.was_taken()
    gate.open()
    assert len(beside.result(timeout=120).compile_results) > 0
    wait_gone(*faulty.strangers())
    faulty.works(f"after_{name}")
    # A worker that is just being forked ahead has its descriptors before it is seen.
    eventually_equal(faulty.footprint, faulty.before)
    report = faulty.pool.status()
    assert (report.running, report.queued, report.waiting_for_forkserver) == (0, 0, 0)
    assert report.counters.get("forkservers_lost", 0) == 0


def test_memory_is_as_before(faulty: Faulty) -> None:
    """After more than a hundred faults; alone, it says nothing."""
    assert faulty.memory() - faulty.memory_before < GROWTH_BYTES
