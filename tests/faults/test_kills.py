"""Whatever is killed, everybody who waits is answered, and the next request works."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from compilepool.client import Pool
from compilepool.corpus import bundled
from compilepool.options import Options
from compilepool.protocol.errors import CompileError, CompilePoolError, PoolUnavailable, WorkerCrashed
from compilepool.protocol.messages import Compiled
from tests.conftest import Daemon, wait_gone
from tests.sources import Gate, held, pointwise

pytestmark = pytest.mark.faults


def works(pool: Pool, name: str) -> None:
    kernel = pointwise(name)
    assert isinstance(pool.warm(kernel.name, kernel.source).result(timeout=120), Compiled)


def assert_idle(daemon: Daemon) -> None:
    report = daemon.status()
    assert (report.running, report.queued, report.waiting_for_forkserver) == (0, 0, 0)


class TestAWorker:
    def test_killed_is_told_with_its_signal_and_others_finish(self, shared_daemon: Daemon, tmp_path: Path) -> None:
        victim, victims_gate = held(tmp_path, "victim")
        other, others_gate = held(tmp_path, "other")
        with shared_daemon.pool() as pool:
            first = pool.compile_source(victim.name, victim.source)
            victims_gate.wait_started()
            (worker,) = shared_daemon.workers()
            second = pool.compile_source(other.name, other.source)
            others_gate.wait_started()
            worker.kill()
            with pytest.raises(WorkerCrashed, match=r"victim: .* was killed by SIGKILL \(Killed\)"):
                first.result(timeout=60)
            others_gate.open()
            assert len(second.result(timeout=60).compile_results) > 0
            works(pool, "after_a_kill")
        assert_idle(shared_daemon)

    @pytest.mark.parametrize(
        ("action", "error", "says"),
        [
            ("os._exit(0)", WorkerCrashed, "exited with status 0 before it answered"),
            ("os._exit(7)", WorkerCrashed, "exited with status 7 before it answered"),
            ("sys.exit(3)", CompileError, "its source can't be executed: SystemExit: 3"),
            ("os.abort()", WorkerCrashed, "SIGABRT"),
            ("os.kill(os.getpid(), 15)", WorkerCrashed, "SIGTERM"),
            ("os.kill(os.getpid(), 2)", WorkerCrashed, "SIGINT"),
            ("os.kill(os.getpid(), 11)", WorkerCrashed, "SIGSEGV"),
            ("print('last words', flush=True); os._exit(1)", WorkerCrashed, "it printed: last words"),
            ("raise KeyboardInterrupt", CompileError, "KeyboardInterrupt"),
            ("raise ValueError(chr(0xdcff))", CompileError, "ValueError: .udcff"),
            ("raise ValueError('x' * 2_000_000 + 'the end')", CompileError, "characters. .*the end"),
            ("raise MemoryError", CompileError, "MemoryError"),
            ("os.write(3, b'x' * 100); os._exit(0)", WorkerCrashed, "not a compilepool peer"),
        ],
    )
    def test_that_ends_itself_is_told_how(
        self, shared_daemon: Daemon, action: str, error: type[CompilePoolError], says: str
    ) -> None:
        with shared_daemon.pool() as pool:
            with pytest.raises(error, match=f"(?s)ends_itself: .*{says}"):
                pool.compile_source("ends_itself", f"import os, sys\n{action}\n").result(timeout=60)
            works(pool, "after_" + "".join(c for c in action if c.isalnum()))

    def test_takes_what_it_started_with_it(self, shared_daemon: Daemon, tmp_path: Path) -> None:
        kernel, gate = held(tmp_path, "parent")
        child = "import subprocess; subprocess.Popen(['sleep', '1000'])\n"
        with shared_daemon.pool() as pool:
            future = pool.compile_source(kernel.name, child + kernel.source)
            gate.wait_started()
            (worker,) = shared_daemon.workers()
            (sleeper,) = worker.children()
            worker.kill()
            assert isinstance(future.exception(timeout=60), WorkerCrashed)
            wait_gone(sleeper)

    def test_leaves_no_scratch_behind(self, shared_daemon: Daemon, tmp_path: Path) -> None:
        kernel, gate = held(tmp_path, "scratch")
        with shared_daemon.pool() as pool:
            future = pool.compile_source(kernel.name, kernel.source)
            gate.wait_started()
            (worker,) = shared_daemon.workers()
            scratch = Path(os.readlink(f"/proc/{worker.pid}/cwd"))
            worker.kill()
            assert isinstance(future.exception(timeout=60), WorkerCrashed)
        assert scratch.parent.exists()
        assert not scratch.exists()


def test_a_cancelled_request_frees_its_worker(shared_daemon: Daemon, tmp_path: Path) -> None:
    kernel, gate = held(tmp_path, "cancelled")
    with shared_daemon.pool() as pool:
        future = pool.compile_source(kernel.name, kernel.source)
        gate.wait_started()
        (worker,) = shared_daemon.workers()
        assert future.cancel()
        wait_gone(worker)
        works(pool, "after_a_cancel")
    assert_idle(shared_daemon)


def test_a_killed_daemon_takes_its_workers_along_and_the_client_compiles_itself(daemon: Daemon, tmp_path: Path) -> None:
    kernel, gate = held(tmp_path, "orphan")
    with daemon.pool(fallback=True) as pool:
        future = pool.compile_source(kernel.name, kernel.source)
        gate.wait_started()
        forkserver, (worker,) = daemon.forkserver(), daemon.workers()
        daemon.kill()
        wait_gone(worker, forkserver)
        passing = threading.Thread(target=_pass, args=(gate,))
        passing.start()
        assert len(future.result(timeout=120).compile_results) > 0
        passing.join(timeout=30)


def test_a_daemon_that_stops_answering_is_given_up(daemon: Daemon, tmp_path: Path) -> None:
    kernel = pointwise("given_up")
    with Pool(Options(daemon.socket, autostart=False, fallback=False, patience=0.2)) as pool:
        pool.status()
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(PoolUnavailable, match="has not answered"):
                pool.compile_source(kernel.name, kernel.source).result(timeout=60)
        finally:
            daemon.process.send_signal(signal.SIGCONT)


def test_a_long_compile_is_no_silence(daemon: Daemon, tmp_path: Path) -> None:
    kernel, gate = held(tmp_path, "long")
    with Pool(Options(daemon.socket, autostart=False, fallback=False, patience=0.1)) as pool:
        future = pool.compile_source(kernel.name, kernel.source)
        gate.wait_started()
        before = pool.status().counters["requests"]
        with pytest.raises(TimeoutError):
            future.result(timeout=1)
        gate.open()
        assert len(future.result(timeout=60).compile_results) > 0
        assert pool.status().counters["requests"] == before


def _pass(gate: Gate) -> None:
    gate.wait_started()
    gate.open()


def test_a_killed_client_leaves_nothing(shared_daemon: Daemon, tmp_path: Path) -> None:
    kernel, gate = held(tmp_path, "left_alone")
    (tmp_path / "source.py").write_text(kernel.source)
    code = (
        "import sys, pathlib, compilepool\n"
        "pool = compilepool.connect(sys.argv[1], autostart=False, fallback=False)\n"
        f"pool.compile_source('left_alone', pathlib.Path({str(tmp_path / 'source.py')!r}).read_text()).result()\n"
    )
    client = subprocess.Popen([sys.executable, "-c", code, str(shared_daemon.socket)])
    gate.wait_started()
    (worker,) = shared_daemon.workers()
    client.send_signal(signal.SIGKILL)
    client.wait()
    wait_gone(worker)
    with shared_daemon.pool() as pool:
        works(pool, "after_a_client")
    assert_idle(shared_daemon)


def test_a_killed_forkserver_is_replaced_and_its_jobs_run_again(daemon: Daemon, tmp_path: Path) -> None:
    kernel, gate = held(tmp_path, "twice")
    with daemon.pool() as pool:
        future = pool.compile_source(kernel.name, kernel.source)
        gate.wait_started()
        forkserver, (worker,) = daemon.forkserver(), daemon.workers()
        scratch = Path(os.readlink(f"/proc/{worker.pid}/cwd")).parent
        forkserver.kill()
        wait_gone(worker)
        assert scratch.exists()
        _pass(gate)
        assert len(future.result(timeout=120).compile_results) > 0
        assert pool.status().counters["forkservers_lost"] == 1
    assert not scratch.exists(), "the next forkserver removes what the killed one left"


def test_a_kernel_that_ends_its_forkserver_is_known_and_harms_nobody_else(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its siblings run again, after it; no client has to compile for itself. A sandbox would not let it."""
    monkeypatch.setenv("COMPILEPOOL_SANDBOX", "0")
    sibling, gate = held(tmp_path, "beside_a_parricide")
    with daemon.pool() as pool:
        beside = pool.compile_source(sibling.name, sibling.source)
        gate.wait_started()
        bad = pool.compile_source("parricide", "import os; os.kill(os.getppid(), 9); os.pause()\n")
        passing = threading.Thread(target=_pass, args=(gate,))
        passing.start()
        with pytest.raises(WorkerCrashed, match="parricide: its forkserver was lost twice while compiling it"):
            bad.result(timeout=120)
        assert len(beside.result(timeout=120).compile_results) > 0
        passing.join(timeout=60)
        works(pool, "after_a_parricide")


def test_a_forkserver_that_cant_compile_is_told_with_its_reason(daemon: Daemon, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    (broken / "triton").mkdir(parents=True)
    (broken / "triton" / "__init__.py").write_text("raise ImportError('this triton is broken')\n")
    code = (
        "import sys, compilepool\n"
        "pool = compilepool.connect(sys.argv[1], autostart=False, fallback=False)\n"
        "print(pool.compile_source('k', 'x = 1').exception(timeout=100))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(broken)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(daemon.socket)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert "k: no forkserver could be started: it can't compile: ImportError: this triton is broken" in done.stdout
    with daemon.pool() as pool:
        works(pool, "with_a_good_one")


def test_an_assistant_that_dies_costs_nothing_but_its_work(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lead is the first who executes the source, and writes so; whoever comes after it is killed."""
    monkeypatch.setenv("COMPILEPOOL_SANDBOX", "0")
    kernel = bundled("llama_train")[3]
    lead = tmp_path / "lead"
    prelude = (
        "import os, signal\n"
        f"if os.path.exists({str(lead)!r}): os.kill(os.getpid(), signal.SIGKILL)\n"
        f"open({str(lead)!r}, 'w').close()\n"
    )
    with daemon.pool() as pool:
        answer = pool.warm(kernel.name, prelude + kernel.source).result(timeout=120)
    assert isinstance(answer, Compiled)
    assert len(answer.contents.units) == 6
    status = daemon.status()
    assert status.counters["assistants"] >= 1
    assert status.counters.get("jobs_failed", 0) == status.running == 0


def test_idle_workers_that_are_killed_are_not_missed(daemon: Daemon, tmp_path: Path) -> None:
    first, second = pointwise("before_them"), pointwise("after_them")
    with daemon.pool() as pool:
        assert isinstance(pool.warm(first.name, first.source).result(timeout=120), Compiled)
        forkserver = daemon.forkserver()
        idle = [worker for worker in forkserver.children() if worker.name() == "cpool-idle"]
        assert idle
        for worker in idle:
            worker.kill()
        wait_gone(*idle)
        assert isinstance(pool.warm(second.name, second.source).result(timeout=120), Compiled)
    assert daemon.forkserver() == forkserver
