"""The scheduler alone, on virtual time: who gets how much, and what a decision costs.

    python -m benchmarks.scheduler [--clients 10000] [--requests 1000000] [--users 100] [--slots 64] [--json]

Everybody asks for everything at once, so that the queue is as long as it gets. Each user has a forkserver; a job takes
a random time; one request in ten is a foreground one, and one in four asks for what another of its user has asked for
already. When half of it is done, a new client of a new user asks for one foreground kernel.

The run is repeated with a tenth and a hundredth of the requests: what a decision costs should grow like the logarithm.
Decisions are timed in groups, so that the clock does not cost more than what it measures.
"""

import argparse
import heapq
import itertools
import json
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

from compilepool.daemon import actions as act, events as ev
from compilepool.daemon.owner import HOST, Owner
from compilepool.daemon.scheduler import Scheduler

GROUP = 1000
LATE_USER, LATE_CLIENT = 1_000_000, 1_000_000


@dataclass(slots=True)
class Outcome:
    """What a run showed.

    answered: requests by the number of their answers: {1: all}
    seconds_of_users: least and most seconds of slots that a user had in the first half, among equals
    starts_of_clients: fewest and most jobs that one got started by then
    late_waited: jobs that were started between the late foreground request and its own start
    microseconds: of a decision: on average, and in the slowest of a hundred groups
    """

    requests: int
    clients: int
    slots: int
    decisions: int = 0
    answered: dict[int, int] = field(default_factory=dict)
    seconds_of_users: tuple[float, float] = (0.0, 0.0)
    starts_of_clients: tuple[int, int] = (0, 0)
    late_waited: int = -1
    microseconds: float = 0.0
    microseconds_p99: float = 0.0
    peak_mib: int = 0


class Simulation:
    """Plays clients, store and forkservers for a real `Scheduler`, until everybody is answered."""

    def __init__(self, clients: int, requests: int, users: int, slots: int, seed: int = 0) -> None:
        self.outcome = Outcome(requests, clients, slots)
        self.scheduler = Scheduler(slots)
        self._random = random.Random(seed)
        self._users = users
        self._now = 0.0
        self._due: list[tuple[float, int, ev.Event]] = []
        self._order = itertools.count()
        self._answers: Counter[ev.RequestId] = Counter()
        self._owner: dict[int, ev.RequestId] = {}
        self._clients_started: Counter[int] = Counter()
        self._started = 0
        self._late_since: int | None = None
        self._timed: list[float] = []
        self._group, self._in_group = 0.0, 0

    def run(self) -> Outcome:
        """Play it to the end."""
        for user in [*range(self._users), LATE_USER]:
            self._feed(ev.Attached(user, _domain(user)))
            self._feed(ev.Ready(user))
        for submitted in self._submissions():
            self._feed(submitted)
        while self._due:
            self._now, _, event = heapq.heappop(self._due)
            self._feed(event)
            if self._started >= self.outcome.requests // 2 and self._late_since is None:
                self._halfway()
        return self._report()

    def _submissions(self) -> Iterator[ev.Submitted]:
        outcome = self.outcome
        each = outcome.requests // outcome.clients
        for number in range(each):
            for client in range(outcome.clients):
                user = client % self._users
                # Of all that a user's clients ask for, a quarter is the same.
                key = f"{number} {user}" if number % 4 == 0 else f"{number} {client}"
                priority = "foreground" if number % 10 == 0 else "background"
                request = ev.RequestId(client, number)
                yield ev.Submitted(request, _domain(user), key, key, priority, self._random.random())  # type: ignore[arg-type]

    def _halfway(self) -> None:
        """Look who got how much, and let the late one ask."""
        seconds = [self.scheduler.account(_domain(user).owner).slot_seconds for user in range(self._users)]
        self.outcome.seconds_of_users = min(seconds), max(seconds)
        self.outcome.starts_of_clients = _range(self._clients_started)
        self._late_since = self._started
        late = ev.Submitted(ev.RequestId(LATE_CLIENT, 1), _domain(LATE_USER), "late", "late", "foreground", 1.0)
        self._feed(late)

    def _feed(self, event: ev.Event) -> None:
        started = time.perf_counter()
        actions = self.scheduler.handle(event, self._now)
        self._group += time.perf_counter() - started
        self._in_group += 1
        if self._in_group == GROUP:
            self._timed.append(self._group / GROUP)
            self._group, self._in_group = 0.0, 0
        self.outcome.decisions += 1
        for action in actions:
            self._perform(action)

    def _perform(self, action: act.Action) -> None:
        match action:
            case act.LookUp(job, request):
                self._owner[job] = request
                self._after(0.0, ev.LookedUp(job, found=False))
            case act.Run(job):
                self._began(job)
                self._after(self._random.lognormvariate(0.0, 1.0), ev.Succeeded(job, 1))
            case act.Answer(request) | act.Fail(request):
                self._answers[request] += 1
            case act.Ping(forkserver):
                self._after(0.001, ev.Heard(forkserver))
            case _:
                pass

    def _began(self, job: int) -> None:
        self._started += 1
        client = self._owner.pop(job).client
        if client == LATE_CLIENT and self._late_since is not None:
            self.outcome.late_waited = self._started - self._late_since - 1
        elif self._late_since is None:
            self._clients_started[client] += 1

    def _after(self, seconds: float, event: ev.Event) -> None:
        heapq.heappush(self._due, (self._now + seconds, next(self._order), event))

    def _report(self) -> Outcome:
        outcome = self.outcome
        outcome.answered = dict(Counter(self._answers.values()))
        timed = sorted(self._timed) or [self._group / max(1, self._in_group)]
        outcome.microseconds = 1e6 * sum(timed) / len(timed)
        outcome.microseconds_p99 = 1e6 * timed[int(0.99 * (len(timed) - 1))]
        outcome.peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        return outcome


def _domain(user: int) -> ev.Domain:
    return ev.Domain(Owner(HOST, user), "toolchain")


def _range(counts: Counter[int]) -> tuple[int, int]:
    return min(counts.values()), max(counts.values())


def main() -> None:
    """Run three sizes, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--users", type=int, default=100)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    smallest = None
    for part in (100, 10, 1):
        clients, users = max(1, options.clients // part), max(1, options.users // part)
        outcome = Simulation(clients, options.requests // part, users, options.slots).run()
        smallest = smallest or outcome
        if options.json:
            print(json.dumps(asdict(outcome)), flush=True)
            continue
        print(
            f"{outcome.requests:>8} requests of {clients:>6} clients of {users:>4} users, {outcome.slots} slots: "
            f"{outcome.decisions} decisions of {outcome.microseconds:.1f} us (slow groups "
            f"{outcome.microseconds_p99:.1f}; {outcome.microseconds / smallest.microseconds:.2f}x the smallest run); "
            f"answers {outcome.answered}; "
            f"slot seconds of a user {outcome.seconds_of_users[0]:.0f} to {outcome.seconds_of_users[1]:.0f}, "
            f"starts of a client {outcome.starts_of_clients}; "
            f"late foreground waited for {outcome.late_waited} starts; {outcome.peak_mib} MiB",
            flush=True,
        )
    sys.exit(0)


if __name__ == "__main__":
    main()
