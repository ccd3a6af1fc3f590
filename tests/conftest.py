"""Real daemons for tests: each in a directory of its own, killed with everything it started when its test ends."""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from compilepool.client import Pool, connect
from compilepool.protocol.messages import StatusReport

PYTHON = sys.executable


class Daemon:
    """A real daemon process with a socket and a store of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.socket = folder / "pool.sock"
        self.store = folder / "store"
        self._options = options
        self.start()

    def start(self) -> None:
        """Start it, again if it ran before, and wait until it listens."""
        command = [PYTHON, "-P", "-m", "compilepool", "serve", "--socket", str(self.socket), "--store", str(self.store)]
        # Two, wherever the tests run: some hold one worker and expect another to go on.
        options = ["--slots", "2", *self._options]
        self.process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
        self.log = Log(self.process)
        self.log.wait_for("event=serving")

    def pool(self, *, fallback: bool = False) -> Pool:
        """A new connection to this daemon."""
        return connect(self.socket, autostart=False, fallback=fallback)

    def status(self) -> StatusReport:
        """The daemon's own report."""
        with self.pool() as pool:
            return pool.status()

    def terminate(self) -> int:
        """SIGTERM, and wait for the end: the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """SIGKILL, and wait."""
        self.process.kill()
        self.wait()

    def wait(self) -> int:
        """Wait for the end: the exit status."""
        status = self.process.wait(timeout=60)
        self.log.close()
        return status

    def forkserver(self) -> psutil.Process:
        """The forkserver that is attached."""
        (attached,) = self.forkservers()
        return attached

    def forkservers(self) -> list[psutil.Process]:
        """Those that are attached."""
        return [psutil.Process(int(told.split("pid ")[1].split(",")[0])) for told in self.status().forkservers]

    def workers(self) -> list[psutil.Process]:
        """The processes that compile now (idle ones wait beside them)."""
        return [worker for worker in self.forkserver().children() if worker.name() == "cpool-worker"]

    def close(self) -> None:
        """End it and its forkservers."""
        forkservers = [p for p in psutil.process_iter() if _uses(p, self.socket)]
        if self.process.poll() is None:
            self.kill()
        wait_gone(*forkservers)


class Log:
    """What a daemon logs, as it logs it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._lines: list[str] = []
        self._seen = 0
        self._changed = threading.Condition()
        self._ended = False
        self._process = process
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, text: str) -> str:
        """The next line, not seen by an earlier call, that contains `text`."""
        with self._changed:
            while True:
                for index in range(self._seen, len(self._lines)):
                    if text in self._lines[index]:
                        self._seen = index + 1
                        return self._lines[index]
                assert not self._ended, f"the log ended without {text!r}:\n{''.join(self._lines)}"
                assert self._changed.wait(timeout=120), f"no {text!r} came:\n{''.join(self._lines)}"

    def close(self) -> None:
        """Wait for the log's end."""
        self._reader.join(timeout=30)

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            for line in stream:
                self._add(line)
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _add(self, line: str) -> None:
        with self._changed:
            self._lines.append(line)
            self._changed.notify_all()


def wait_gone(*processes: psutil.Process) -> None:
    """Wait until these have ended, whoever is to reap them (a container's first process may not)."""
    for process in processes:
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            continue
        try:
            ended, _, _ = select.select([descriptor], [], [], 60)
        finally:
            os.close(descriptor)
        assert ended, f"{process} goes on"


def eventually_equal(measure: Callable[[], Any], expected: Any) -> None:
    """Measure what nobody announces until it is so, for at most half a minute."""
    deadline = time.monotonic() + 30
    while (measured := measure()) != expected:
        assert time.monotonic() < deadline, f"{measured}, not {expected}"
        os.sched_yield()


def _uses(process: psutil.Process, socket: Path) -> bool:
    try:
        command = process.cmdline()
    except psutil.Error:
        return False
    return "forkserver" in command and str(socket) in command


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon for one test."""
    running = Daemon(tmp_path)
    yield running
    running.close()


@pytest.fixture(scope="session")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that tests share which neither kill nor count; its forkserver stays warm."""
    running = Daemon(tmp_path_factory.mktemp("shared"))
    yield running
    running.close()


@pytest.fixture(autouse=True, scope="session")
def _own_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Inductor's and Triton's caches of this test run."""
    folder = tmp_path_factory.mktemp("caches")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
        patch.setenv("TRITON_CACHE_DIR", str(folder / "triton"))
        patch.delenv("COMPILEPOOL_SOCKET", raising=False)
        yield


@pytest.fixture
def as_root() -> None:
    """Skip where the test can't become another user."""
    if os.getuid() != 0:
        pytest.skip("needs root, to become another user")
