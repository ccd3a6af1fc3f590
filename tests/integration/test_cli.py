"""The command line, as a person and as a machine meet it."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.conftest import Daemon, wait_gone
from tests.sources import pointwise


def run(*arguments: object, check: bool = True) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-P", "-m", "compilepool", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL)
    assert not check or done.returncode == 0, done.stderr
    return done


def kernel_file(folder: Path, *names: str, body: str = "value + 1.0") -> Path:
    path = folder / "kernels.jsonl"
    kernels = [pointwise(name, body) for name in names]
    path.write_text("".join(json.dumps({"name": k.name, "source": k.source}) + "\n" for k in kernels))
    return path


def test_compile_tells_people_and_machines(shared_daemon: Daemon, tmp_path: Path) -> None:
    path = kernel_file(tmp_path, "told_one", "told_two")
    done = run("compile", path, "--socket", shared_daemon.socket)
    assert "2 kernels, " in done.stdout
    assert "2 compiled in " in done.stdout
    assert done.stderr == ""
    again = json.loads(run("compile", path, "--json", "--socket", shared_daemon.socket).stdout)
    assert (again["kernels"], again["from_store"], again["failed"]) == (2, 2, [])


def test_compile_for_other_targets(shared_daemon: Daemon, tmp_path: Path) -> None:
    path = kernel_file(tmp_path, "for_targets")
    options = ("--target", "cuda:80", "--target", "cuda:100", "--target", "hip:gfx942", "--json")
    done = json.loads(run("compile", path, *options, "--socket", shared_daemon.socket).stdout)
    assert (done["kernels"], done["compiled"]) == (3, 3)


def test_a_kernel_that_fails_is_named_and_fails_the_command(shared_daemon: Daemon, tmp_path: Path) -> None:
    done = run("compile", kernel_file(tmp_path, "bad", body="nothing"), "--socket", shared_daemon.socket, check=False)
    assert done.returncode == 1
    assert "failed: bad: config XBLOCK: " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("compile", "/none.jsonl.gz"), "Error: /none.jsonl.gz can't be read: No such file or directory"),
        (("compile",), "Missing argument 'FILES...'"),
        (("compile", "FILE", "--target", "cuda:1"), "Error: cuda:1 is no known target; these are: cuda:80"),
        (("status", "--socket", "/none.sock"), "no daemon answers at /none.sock"),
        (("stop", "--socket", "/none.sock"), "`compilepool serve` starts one"),
        (("forkserver", "--socket", "/none.sock"), "can't attach to the daemon at /none.sock"),
        (("serve", "--slots", "0"), "Invalid value for '--slots'"),
        (("serve", "--socket", "/" + "x" * 150), "too long"),
        (("serve", "--socket", "/proc/x/pool.sock"), "can't listen on /proc/x/pool.sock"),
        (("serve", "--detach", "--socket", "/proc/x/pool.sock"), "Error: "),
        (("serve", "--idle-exit", "nan"), "nan is no number of seconds"),
        (("explode",), "No such command 'explode'"),
    ],
)
def test_bad_input_is_one_clear_line(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    path = kernel_file(tmp_path, "k")
    done = run(*(str(path) if a == "FILE" else a for a in arguments), check=False)
    assert done.returncode in (1, 2)
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_status_tells_people_and_machines(shared_daemon: Daemon) -> None:
    text = run("status", "--socket", shared_daemon.socket).stdout
    assert f"pid {shared_daemon.process.pid}" in text
    report = json.loads(run("status", "--json", "--socket", shared_daemon.socket).stdout)
    assert report["pid"] == shared_daemon.process.pid
    assert report["running"] == 0


def test_stop_stops(daemon: Daemon) -> None:
    assert "is stopping" in run("stop", "--socket", daemon.socket).stdout
    assert daemon.wait() == 0


def test_a_second_daemon_is_refused(daemon: Daemon) -> None:
    done = run("serve", "--socket", daemon.socket, check=False)
    assert done.returncode == 1
    assert "already serves" in done.stderr
    done = run("serve", "--detach", "--socket", daemon.socket, check=False)
    assert "already serves" in done.stderr
    run("serve", "--detach", "--if-needed", "--socket", daemon.socket)


def test_every_command_helps() -> None:
    for command in ("demo", "compile", "status", "stop", "serve", "forkserver"):
        assert "--help" in run(command, "--help").stdout


def test_an_interrupted_demo_leaves_no_daemon() -> None:
    command = [sys.executable, "-P", "-m", "compilepool", "demo"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        assert "started a daemon" in demo.stdout.readline()
        started = [p for p in psutil.process_iter() if _serves_a_demo(p)]
        assert started
        demo.terminate()
        demo.communicate(timeout=60)
    wait_gone(*started)


def _serves_a_demo(process: psutil.Process) -> bool:
    try:
        return any("compilepool-demo-" in part for part in process.cmdline())
    except psutil.Error:
        return False


@pytest.mark.slow
def test_the_demo() -> None:
    told = json.loads(run("demo", "--json").stdout)
    assert (told["cold"]["compiled"], told["again"]["from_store"]) == (32, 32)
    assert told["cold"]["units"] == told["again"]["units"] == 61
    assert len(told["loaded"]) == 1
