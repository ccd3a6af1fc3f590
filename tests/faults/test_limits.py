"""What a kernel may take, what is said to whom it stopped, and who is served next; with a real daemon."""

import signal
import threading
from pathlib import Path

import pytest

from compilepool.protocol.errors import CompileTimeout, PoolUnavailable, Refused, WorkerCrashed
from compilepool.protocol.messages import Compiled
from tests.conftest import Daemon, wait_gone
from tests.sources import held, pointwise

pytestmark = pytest.mark.faults


def test_a_time_limit_is_told_with_phase_and_limit(shared_daemon: Daemon) -> None:
    with shared_daemon.pool() as pool:
        future = pool.compile_source("patient", "while True: pass\n", timeout=0.5)
        with pytest.raises(CompileTimeout) as raised:
            future.result(timeout=60)
    assert str(raised.value) == ("patient: it was stopped after 0.5 s, its time limit (in phase executing the source)")


def test_a_worker_that_dies_in_the_compiler_is_told_with_its_config(shared_daemon: Daemon) -> None:
    prelude = (
        "import os\n"
        "from compilepool.daemon.worker import note\n"
        "enter = note.enter\n"
        "def enter_and_die(step, config=None):\n"
        "    enter(step, config)\n"
        "    if step.value == 'llvm': os.abort()\n"
        "note.enter = enter_and_die\n"
    )
    kernel = pointwise("dies_in_llvm", prelude=prelude)
    with shared_daemon.pool() as pool, pytest.raises(WorkerCrashed) as raised:
        pool.compile_source(kernel.name, kernel.source).result(timeout=60)
    assert "SIGABRT" in str(raised.value)
    assert "(in phase llvm, config XBLOCK: " in str(raised.value)


def test_one_clients_short_limit_is_not_anothers(shared_daemon: Daemon, tmp_path: Path) -> None:
    kernel, gate = held(tmp_path, "patiently")
    with shared_daemon.pool() as hasty, shared_daemon.pool() as patient:
        short = hasty.compile_source(kernel.name, kernel.source, timeout=1.0)
        gate.wait_started()
        long = patient.compile_source(kernel.name, kernel.source)
        with pytest.raises(CompileTimeout):
            short.result(timeout=60)
        gate.wait_started()
        gate.open()
        assert len(long.result(timeout=60).compile_results) > 0


def test_more_than_the_daemon_allows_is_refused(shared_daemon: Daemon) -> None:
    kernel = pointwise("impatient")
    with shared_daemon.pool() as pool, pytest.raises(Refused, match="601 s was asked for; this daemon takes up to 600"):
        pool.warm(kernel.name, kernel.source, timeout=601).result(timeout=60)


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan"), float("inf"), True, "5"])
def test_what_is_no_time_is_told_at_the_call(shared_daemon: Daemon, timeout: float) -> None:
    with shared_daemon.pool() as pool, pytest.raises((ValueError, TypeError), match="timeout is a number of seconds"):
        pool.warm("k", "x = 1", timeout=timeout)


def test_a_kernel_that_keeps_killing_workers_is_refused_with_what_was_said(daemon: Daemon) -> None:
    source = "import os; os.kill(os.getpid(), 11)\n"
    good = pointwise("beside_a_killer")
    with daemon.pool() as pool:
        for _ in range(2):
            with pytest.raises(WorkerCrashed, match="SIGSEGV"):
                pool.compile_source("killer", source).result(timeout=60)
        with pytest.raises(Refused, match=r"killer: it is not tried again for \d+ s: .* SIGSEGV"):
            pool.compile_source("killer", source).result(timeout=60)
        assert isinstance(pool.warm(good.name, good.source).result(timeout=60), Compiled)


def test_whoever_blocks_on_a_background_request_is_served_next(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, "--slots", "1")
    try:
        first, gate = held(tmp_path, "first")
        with daemon.pool() as pool, daemon.pool() as other:
            pool.warm(first.name, first.source)
            gate.wait_started()
            queued = [pointwise(f"queued_{number}") for number in range(30)]
            futures = [pool.warm(kernel.name, kernel.source) for kernel in queued]
            blocked = threading.Thread(target=futures[-1].result, args=(120,))
            blocked.start()
            while pool.status().counters.get("promoted", 0) == 0:
                pass
            urgent = other.compile_source("urgent", pointwise("urgent").source)
            while pool.status().queued < len(queued) + 1:
                pass
            gate.open()
            urgent.result(timeout=120)
            blocked.join(timeout=120)
            order = [daemon.log.wait_for("event=compiled").split("kernel=")[1].split(" ")[0] for _ in range(3)]
        assert order[0] == "first"
        assert sorted(order[1:]) == ["queued_29", "urgent"], "both are foreground, and take turns"
    finally:
        daemon.close()


@pytest.mark.slow
def test_a_stopped_forkserver_is_given_up_and_its_job_goes_to_the_next(daemon: Daemon, tmp_path: Path) -> None:
    kernel, gate = held(tmp_path, "elsewhere")
    with daemon.pool() as pool:
        future = pool.compile_source(kernel.name, kernel.source)
        gate.wait_started()
        stopped, (worker,) = daemon.forkserver(), daemon.workers()
        stopped.send_signal(signal.SIGSTOP)
        assert "it did not answer" in daemon.log.wait_for("event=retired")
        worker.kill()
        daemon.log.wait_for("event=ready")
        gate.wait_started()
        gate.open()
        assert len(future.result(timeout=120).compile_results) > 0
        assert pool.status().counters["forkservers_dropped"] == 1
        assert daemon.forkserver() != stopped
        # The next one has ended it: stopped, it would stay for ever.
        wait_gone(stopped)


def test_a_successor_takes_over_without_a_gap(tmp_path: Path) -> None:
    old = Daemon(tmp_path)
    new = None
    try:
        kernel, gate = held(tmp_path, "finished_by_the_old")
        with old.pool() as pool:
            first = pool.compile_source(kernel.name, kernel.source)
            gate.wait_started()
            queued = [pool.warm(k.name, k.source) for k in (pointwise(f"handed_over_{n}") for n in range(5))]
            before = pool.status().pid
            new = Daemon(tmp_path, "--replace")
            assert pool.status().pid == new.process.pid != before
            for future in queued:
                assert isinstance(future.result(timeout=120), Compiled)
            gate.open()
            assert len(first.result(timeout=120).compile_results) > 0
            assert old.wait() == 0
            assert pool.status().pid == new.process.pid
    finally:
        # Its forkserver, which has the same socket, goes with it.
        for daemon in (new, old):
            if daemon is not None:
                daemon.close()


def test_replacing_nobody_is_starting(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, "--replace")
    try:
        assert daemon.status().pid == daemon.process.pid
    finally:
        daemon.close()


def test_what_a_stopping_daemon_hands_back_is_unavailable_where_nobody_follows(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, "--slots", "1")
    try:
        first, gate = held(tmp_path, "runs")
        second = pointwise("waits")
        with daemon.pool() as pool:
            running = pool.compile_source(first.name, first.source)
            gate.wait_started()
            waiting = pool.compile_source(second.name, second.source)
            while pool.status().queued == 0:
                pass
            pool.stop()
            with pytest.raises(PoolUnavailable, match="the daemon is stopping; and then no daemon answers"):
                waiting.result(timeout=60)
            gate.open()
            assert len(running.result(timeout=60).compile_results) > 0
        assert daemon.wait() == 0
    finally:
        daemon.close()
