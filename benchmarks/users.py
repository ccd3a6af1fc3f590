"""Users of one host who compile the same kernels at the same time: each for itself, and with a backend for all.

    sudo python -m benchmarks.users [--users 4] [--kernels llama_train] [--rounds 3] [--json]

Real users, daemon, forkservers and backend, warm before the clock starts; the two kinds of round take turns. What is
compared is the CPU time of all compiles, and the time until everybody has everything.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

from tests.hosts.host import BACKEND, Host, Service, User, a_host, source

WARM = """
import compilepool
from compilepool.corpus import bundled
from tests.sources import pointwise
with compilepool.connect(autostart=False, fallback=False) as pool:
    first = pointwise("warms_up")
    pool.warm(first.name, first.source).result(timeout=300)
    print("ready", flush=True)
    sys.stdin.readline()
    kernels = bundled(sys.argv[1])
    for asked in [pool.warm(k.name, k.source, priority="foreground") for k in kernels]:
        asked.result(timeout=600)
    print("done", flush=True)
    sys.stdin.readline()
"""


@dataclass(frozen=True, slots=True)
class Round:
    """One: CPU seconds of all workers, of them the backend's; seconds until all users had everything."""

    shared: bool
    cpu: float
    backend: float
    wall: float


def play(users: int, kernels: str, *, shared: bool) -> Round:
    """One round, on a host of its own."""
    settings = f"[access]\n[sharing]\nbackend = {BACKEND.uid}\n" if shared else "[access]\n"
    with a_host() as host:
        service = Service(host, settings)
        try:
            if shared:
                service.backend()
            return _play(host, service, users, kernels, shared=shared)
        finally:
            service.close()


def _play(host: Host, service: Service, users: int, kernels: str, *, shared: bool) -> Round:
    programs = []
    for number in range(users):
        user = User(f"user{number}", 64010 + number)
        host.give_home(user)
        command = [sys.executable, "-P", "-c", source(WARM), kernels]
        programs.append(host.start(user, *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        _expect(programs[-1], "ready\n")
    before = _cpu(service)
    started = time.monotonic()
    for program in programs:
        assert program.stdin is not None
        program.stdin.write("\n")
        program.stdin.flush()
    for program in programs:
        _expect(program, "done\n")
    wall = time.monotonic() - started
    after = _cpu(service)
    spent = {user: seconds - before.get(user, 0.0) for user, seconds in after.items()}
    return Round(shared, sum(spent.values()), spent.get("shared", 0.0), wall)


def _expect(program: "subprocess.Popen[str]", line: str) -> None:
    assert program.stdout is not None
    said = program.stdout.readline()
    assert said == line, said


def _cpu(service: Service) -> dict[str, float]:
    with service.pool() as pool:
        return {user.user: user.cpu_seconds for user in pool.status().users}


def main() -> None:
    """Play the rounds, and say what they took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=4)
    parser.add_argument("--kernels", default="llama_train")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rounds = []
    for _ in range(options.rounds):
        for shared in (False, True):
            rounds.append(play(options.users, options.kernels, shared=shared))
            if options.json:
                print(json.dumps(asdict(rounds[-1])), flush=True)
    alone, together = ([r for r in rounds if r.shared is shared] for shared in (False, True))
    cpu = [statistics.median(r.cpu for r in kind) for kind in (alone, together)]
    wall = [statistics.median(r.wall for r in kind) for kind in (alone, together)]
    backend = statistics.median(r.backend for r in together)
    if not options.json:
        print(
            f"{options.users} users, {options.kernels}: each for itself {cpu[0]:.1f} CPU s, {wall[0]:.1f} s; with a "
            f"backend {cpu[1]:.1f} CPU s ({cpu[1] / cpu[0]:.2f} of it; {backend:.1f} of them the backend's), "
            f"{wall[1]:.1f} s ({wall[1] / wall[0]:.2f})"
        )


if __name__ == "__main__":
    main()
