"""Starting, stopping, idling: of daemon and forkserver."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from compilepool.client import connect
from compilepool.protocol.errors import PoolUnavailable, Refused
from compilepool.protocol.messages import Compiled
from tests.conftest import Daemon, wait_gone
from tests.sources import held, pointwise

# A program may fork with threads, and be told so; what this client does then is what is tested.
forking = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

ASK_PID = """
import sys, compilepool
sys.stdin.read(1)
with compilepool.connect(sys.argv[1], fallback=False) as pool:
    print(pool.status().pid)
"""


def test_fifty_processes_that_start_a_daemon_at_once_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pool.sock"
    monkeypatch.setenv("COMPILEPOOL_STORE", str(tmp_path / "store"))
    command = [sys.executable, "-c", ASK_PID, str(path)]
    asking = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(50)
    ]
    for process in asking:
        assert process.stdin is not None
        process.stdin.write("x")
        process.stdin.flush()
    said = [process.communicate(timeout=120) for process in asking]
    assert [error for _, error in said if error] == []
    (pid,) = {int(output) for output, _ in said}
    with connect(path, autostart=False, fallback=False) as pool:
        pool.stop()
    wait_gone(psutil.Process(pid))
    assert not path.exists()


def test_a_started_daemon_belongs_to_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPILEPOOL_STORE", str(tmp_path / "store"))
    with connect(tmp_path / "pool.sock", fallback=False) as pool:
        pid = pool.status().pid
        assert os.getsid(pid) == pid != os.getsid(0)
        pool.stop()


def test_sigterm_finishes_what_runs_and_hands_back_the_rest(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, "--slots", "1")
    try:
        running, gate = held(tmp_path, "running")
        queued = pointwise("queued")
        with daemon.pool() as pool:
            first = pool.compile_source(running.name, running.source)
            gate.wait_started()
            second = pool.compile_source(queued.name, queued.source)
            daemon.process.terminate()
            assert isinstance(second.exception(timeout=60), PoolUnavailable)
            gate.open()
            assert len(first.result(timeout=60).compile_results) > 0
        assert daemon.wait() == 0
        assert not daemon.socket.exists()
    finally:
        daemon.close()


def test_a_second_sigterm_gives_up_what_runs(daemon: Daemon, tmp_path: Path) -> None:
    kernel, gate = held(tmp_path, "given_up")
    with daemon.pool() as pool:
        future = pool.compile_source(kernel.name, kernel.source)
        gate.wait_started()
        (worker,) = daemon.workers()
        daemon.process.terminate()
        daemon.log.wait_for("event=draining")
        daemon.process.terminate()
        assert isinstance(future.exception(timeout=60), PoolUnavailable)
    assert daemon.wait() == 0
    wait_gone(worker)


def test_an_idle_daemon_exits_and_its_forkserver_with_it(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, "--idle-exit", "4")
    try:
        kernel = pointwise("last")
        with daemon.pool() as pool:
            pool.warm(kernel.name, kernel.source).result(timeout=120)
            forkserver = daemon.forkserver()
        assert daemon.wait() == 0
        wait_gone(forkserver)
    finally:
        daemon.close()


def test_results_survive_a_restart_and_clients_reconnect(daemon: Daemon) -> None:
    kernel = pointwise("survives")
    with daemon.pool() as pool:
        assert isinstance(pool.warm(kernel.name, kernel.source).result(timeout=120), Compiled)
        daemon.terminate()
        daemon.start()
        answer = pool.warm(kernel.name, kernel.source).result(timeout=120)
        assert isinstance(answer, Compiled)
        assert answer.origin == "store"


def test_a_forkserver_by_hand_is_warm_before_the_first_client(daemon: Daemon) -> None:
    command = [sys.executable, "-P", "-m", "compilepool", "forkserver", "--detach", "--socket", str(daemon.socket)]
    subprocess.run(command, check=True, timeout=120)
    daemon.log.wait_for("event=ready")
    with daemon.pool() as pool:
        kernel = pointwise("first")
        pool.warm(kernel.name, kernel.source).result(timeout=120)
        assert pool.status().counters["forkservers_started"] == 1
    second = subprocess.run(
        [*command[:-3], "--socket", str(daemon.socket)], capture_output=True, text=True, check=True, timeout=120
    )
    assert "one is attached already" in second.stdout


def test_without_a_daemon_the_program_compiles_itself_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from compilepool import client
    from compilepool.once import SayOnce

    client.say_once = SayOnce("compiling in this process, without the compile pool: %s")
    kernel = pointwise("alone")
    with connect(tmp_path / "none.sock", autostart=False) as pool:
        for _ in range(2):
            assert len(pool.compile_source(kernel.name, kernel.source).result(timeout=120).compile_results) > 0
    (said,) = [record.getMessage() for record in caplog.records if record.name == "compilepool"]
    assert "compiling in this process" in said
    assert "none.sock" in said


def test_a_socket_that_nobody_serves_is_given_up_in_time(tmp_path: Path) -> None:
    path = tmp_path / "silent.sock"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        with pytest.raises(PoolUnavailable, match="timed out"):
            connect(path, autostart=False, fallback=False)


@forking
def test_a_client_may_fork(daemon: Daemon) -> None:
    kernel = pointwise("forked")
    with daemon.pool() as pool:
        pool.warm(kernel.name, kernel.source).result(timeout=120)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                answer = pool.warm(kernel.name, kernel.source).result(timeout=60)
                os.write(writing, getattr(answer, "origin", "none").encode())
                pool.close()
            finally:
                os._exit(0)
        os.close(writing)
        os.waitpid(pid, 0)
        with os.fdopen(reading) as told:
            assert told.read() == "store"
        assert pool.status().clients == 1


@forking
def test_a_future_is_for_the_process_that_asked(daemon: Daemon, tmp_path: Path) -> None:
    kernel, gate = held(tmp_path, "inherited")
    with daemon.pool() as pool:
        future = pool.compile_source(kernel.name, kernel.source)
        gate.wait_started()
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.write(writing, str(future.exception(timeout=60)).encode())
            except PoolUnavailable as exc:
                os.write(writing, str(exc).encode())
            finally:
                os._exit(0)
        os.close(writing)
        os.waitpid(pid, 0)
        with os.fdopen(reading) as told:
            assert "ask again in this one" in told.read()
        gate.open()
        assert len(future.result(timeout=60).compile_results) > 0


def test_another_user_is_refused(daemon: Daemon, as_root: None) -> None:
    daemon.folder.chmod(0o755)
    for folder in daemon.folder.parents:
        if folder.stat().st_mode & 0o001 == 0:
            folder.chmod(folder.stat().st_mode | 0o001)
    daemon.socket.chmod(0o666)
    code = (
        "import os, socket, sys\n"
        "peer = socket.socket(socket.AF_UNIX)\n"
        "os.setgroups([]); os.setgid(65533); os.setuid(65533)\n"
        "peer.connect(sys.argv[1])\n"
        "while chunk := peer.recv(4096): print(chunk)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(daemon.socket)], capture_output=True, text=True, timeout=60)
    assert "serves uid 0 only, and you are uid 65533" in done.stdout, done.stderr


def test_refused_is_not_unavailable() -> None:
    assert not issubclass(Refused, PoolUnavailable)
