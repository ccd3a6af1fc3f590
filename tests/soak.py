"""A pool under random load and random kills, and the proof at its end.

    python -m tests.soak [--minutes 10] [--seed N] [--clients 4]

Clients (processes of their own, `tests.soak_client`) ask for real and for faulty kernels, wait, and cancel at random;
meanwhile workers, forkservers, clients and the daemon itself are killed at random, and what was killed is started
again. Each client keeps a journal: a line for each request before it is sent, and one when it is answered. At the end
nothing is killed any more, the clients finish what they have asked for, and:

    every request of a client that lives to the end of its batch is answered, once
    no answer is wrong: a kernel's TTIR has the constant that its source has, an error is one that its fault explains
    nothing is left: no job, no worker, no stranger below a forkserver, no process, no scratch directory
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil

from compilepool.client import connect
from compilepool.protocol.messages import Compiled, StatusReport
from tests.conftest import eventually_equal, wait_gone
from tests.sources import pointwise

# How often which is killed: a killed daemon's successor needs a forkserver, and that several seconds.
KILLS = {"worker": 12, "client": 3, "forkserver": 2, "daemon": 1}
PAUSES = (0.1, 2.0)
END_SECONDS = 300.0
DAEMON_OPTIONS = ("--slots", "4", "--memory", "600")


class SoakFailed(AssertionError):
    """What the proof lacks."""


class Soak:
    """See the module's docstring; `folder` holds everything, and is to be empty of processes afterwards."""

    def __init__(self, folder: Path, clients: int, seed: int) -> None:
        self.kills: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self._folder = folder
        self._random = random.Random(seed)
        self._stop = folder / "stop"
        self._socket = folder / "pool.sock"
        self._scratch = folder / "tmp"
        self._scratch.mkdir()
        # Clients judge by the TTIR.
        self._environment = {**os.environ, "TMPDIR": str(self._scratch), "COMPILEPOOL_KEEP_IR": "1"}
        self._started = 0
        self._daemon = self._start_daemon()
        self._clients = [self._start_client() for _ in range(clients)]

    def run(self, seconds: float) -> None:
        """Kill at random for so long, let everybody finish, and prove; raises SoakFailed."""
        deadline = time.monotonic() + seconds
        try:
            while time.monotonic() < deadline:
                time.sleep(self._random.uniform(*PAUSES))
                self._kill_one()
            self._prove()
        finally:
            self._end()

    # ---- processes

    def _start_daemon(self) -> "subprocess.Popen[bytes]":
        options = ("--socket", str(self._socket), "--store", str(self._folder / "store"), *DAEMON_OPTIONS)
        return self._start("serve", "-m", "compilepool", "serve", *options)

    def _start_client(self) -> "subprocess.Popen[bytes]":
        self._started += 1
        journal = self._folder / f"journal-{self._started}"
        seed = str(self._random.randrange(2**32))
        return self._start("client", "-m", "tests.soak_client", str(self._socket), str(journal), str(self._stop), seed)

    def _start(self, log: str, *arguments: str) -> "subprocess.Popen[bytes]":
        with (self._folder / f"{log}.log").open("a") as said:
            return subprocess.Popen([sys.executable, *arguments], env=self._environment, stdout=said, stderr=said)

    def _kill_one(self) -> None:
        kind = self._random.choices(list(KILLS), list(KILLS.values()))[0]
        kill: Callable[[], bool] = getattr(self, f"_kill_{kind}")
        self.kills[kind] += kill()

    def _kill_daemon(self) -> bool:
        self._daemon.kill()
        self._daemon.wait()
        self._daemon = self._start_daemon()
        return True

    def _kill_client(self) -> bool:
        victim = self._random.choice(self._clients)
        victim.kill()
        victim.wait()
        self._clients.remove(victim)
        self._clients.append(self._start_client())
        return True

    def _kill_forkserver(self) -> bool:
        return _kill(self._random, _forkservers(self._socket))

    def _kill_worker(self) -> bool:
        return _kill(self._random, [w for f in _forkservers(self._socket) for w in _children(f)])

    def _end(self) -> None:
        for process in [*self._clients, self._daemon]:
            process.kill()
            process.wait()
        for forkserver in _forkservers(self._socket):
            forkserver.kill()

    # ---- proof

    def _prove(self) -> None:
        self._stop.touch()
        for client in self._clients:
            if client.wait(timeout=END_SECONDS) != 0:
                raise SoakFailed(f"a client ended with status {client.returncode}: {self._said('client')}")
        open_at_end = {path.name: _read_journal(path, self.outcomes) for path in self._folder.glob("journal-*")}
        killed = sum(open_at_end.values())
        self._answered_once(killed)
        self._nothing_is_left()

    def _answered_once(self, killed: int) -> None:
        counts = self.outcomes
        self.outcomes["killed with their client"] = killed
        for what in ("wrong", "unanswered", "twice"):
            if counts[what]:
                journals = [path.read_text().splitlines() for path in self._folder.glob("journal-*")]
                lines = [line for journal in journals for line in journal if line.startswith(f'["{what}"')]
                raise SoakFailed(f"{counts[what]} {what}: {lines[:5]}")
        if counts["sent"] != counts["answered"] + killed:
            raise SoakFailed(f"{counts['sent']} sent, {counts['answered']} answered, {killed} killed")

    def _nothing_is_left(self) -> None:
        """One more request: whoever serves it has removed what killed ones left."""
        with connect(self._socket, autostart=False, fallback=False) as pool:
            last = pool.warm("last", pointwise("last").source)
            if not isinstance(last.result(timeout=END_SECONDS), Compiled):
                raise SoakFailed("the last request was not compiled")
            report = pool.status()
            _check_idle(report)
            forkservers = _forkservers(self._socket)
            if len(forkservers) != 1:
                raise SoakFailed(f"{len(forkservers)} forkservers: {forkservers}")
            eventually_equal(lambda: _strangers(forkservers[0]), [])
            pool.stop()
        self._daemon.wait(timeout=END_SECONDS)
        wait_gone(*_forkservers(self._socket), *_in(self._folder))
        if late := [*_forkservers(self._socket), *_in(self._folder)]:
            raise SoakFailed(f"processes have come after the daemon's end: {late}")
        left = [path.name for path in self._scratch.iterdir() if path.name.startswith("compilepool-")]
        if left or self._socket.exists():
            raise SoakFailed(f"left behind: {left}, socket: {self._socket.exists()}")

    def _said(self, log: str) -> str:
        return (self._folder / f"{log}.log").read_text()[-2000:]


def _read_journal(path: Path, outcomes: Counter[str]) -> int:
    """Add up a client's lines; how many of its requests were open when it was killed, or 0."""
    sent: Counter[str] = Counter()
    for line in path.read_text().splitlines():
        try:
            what, request, outcome = json.loads(line)
        except ValueError:
            # Half a line: it was killed while it wrote.
            continue
        outcomes[what] += 1
        if what == "sent":
            sent[request] += 1
        else:
            sent[request] -= 1
            outcomes["twice"] += sent[request] < 0
            outcomes[f"as {outcome.split()[0]}"] += 1
    return sum(sent.values())


def _check_idle(report: StatusReport) -> None:
    if (report.running, report.queued, report.waiting_for_forkserver, report.clients) != (0, 0, 0, 1):
        raise SoakFailed(f"the daemon is not idle: {report}")


def _kill(chance: random.Random, candidates: list[psutil.Process]) -> bool:
    if not candidates:
        return False
    try:
        chance.choice(candidates).kill()
    except psutil.NoSuchProcess:
        return False
    return True


def _forkservers(socket: Path) -> list[psutil.Process]:
    """Those that are up: before, they are called after their interpreter."""
    return [p for p in psutil.process_iter() if _name(p) == "cpool-forksrv" and str(socket) in _arguments(p)]


def _arguments(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children())
    except psutil.Error:
        return []


def _strangers(forkserver: psutil.Process) -> list[psutil.Process]:
    return [child for child in _children(forkserver) if _name(child) not in ("cpool-idle", "")]


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return ""


def _in(folder: Path) -> list[psutil.Process]:
    """Processes that work below a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()).is_relative_to(folder):
                found.append(process)
        except psutil.Error:
            continue
    return found


def main() -> None:
    """Soak, and say what happened; exit status 1 without the proof."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="compilepool-soak-"))
    print(f"soaking for {options.minutes:g} minutes in {folder} (seed {options.seed})", flush=True)
    soak = Soak(folder, options.clients, options.seed)
    try:
        soak.run(60 * options.minutes)
    except AssertionError as exc:
        sys.exit(f"FAILED: {exc}\nkilled: {dict(soak.kills)}\n{json.dumps(soak.outcomes, indent=2, sort_keys=True)}")
    print(f"killed: {dict(soak.kills)}")
    print(json.dumps(soak.outcomes, indent=2, sort_keys=True))
    counts = soak.outcomes
    sent, answered, killed = (counts[name] for name in ("sent", "answered", "killed with their client"))
    print(f"sent {sent} = answered {answered} + killed with their client {killed}; wrong 0, twice 0, leaks 0")


if __name__ == "__main__":
    main()
