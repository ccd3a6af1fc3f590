"""Fifty clients of five users, whose kernels cost different amounts: each user gets a fifth of the CPU."""

import subprocess
import sys

import pytest

from tests.hosts.host import ALICE, BOB, CAROL, Host, Service, User, source

USERS = (ALICE, BOB, CAROL, User("dave", 64004), User("erin", 64005))
CPU_SECONDS = dict(zip((user.uid for user in USERS), (0.1, 0.15, 0.2, 0.3, 0.5), strict=True))
CLIENTS = 10
# By then everybody has had some seconds; nobody's queue is empty.
JOBS, QUEUED = 400, 60

LOAD = """
import cloudpickle, functools, time
from compilepool.client import connect
from compilepool.protocol import messages as m
def burn(seconds):
    while time.process_time() < seconds:
        sum(range(1000))
cloudpickle.register_pickle_by_value(sys.modules["__main__"])
call = cloudpickle.dumps(functools.partial(burn, float(sys.argv[1])))
pools = [connect(autostart=False, fallback=False) for _ in range(int(sys.argv[2]))]
for pool in pools:
    for number in range(int(sys.argv[3])):
        pool.link().request(lambda n: m.Execute(n, m.Call("burn", {})), lambda *_: None, (call,))
tell("asked")
sys.stdin.read()
"""


@pytest.mark.slow
def test_fifty_clients_of_five_users_get_equal_shares(host: Host, service: Service) -> None:
    for user in USERS:
        arguments = [str(CPU_SECONDS[user.uid]), str(CLIENTS), str(QUEUED)]
        host.give_home(user)
        command = [sys.executable, "-P", "-c", source(LOAD), *arguments]
        host.start(user, *command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    for _ in USERS:
        service.log.wait_for("event=ready")
    before = _cpu_seconds(service)
    for _ in range(JOBS):
        service.log.wait_for("event=compiled")
    after = _cpu_seconds(service)
    with service.pool() as pool:
        users = [user for user in pool.status().users if user.user != "0"]
        assert len(users) == len(USERS)
        assert all(user.queued > 0 and user.connections > CLIENTS for user in users), f"a queue was empty: {users}"
    shares = {user: after[user] - before.get(user, 0.0) for user in after}
    equal = sum(shares.values()) / len(USERS)
    assert all(0.8 * equal <= share <= 1.2 * equal for share in shares.values()), shares


def _cpu_seconds(service: Service) -> dict[str, float]:
    with service.pool() as pool:
        return {user.user: user.cpu_seconds for user in pool.status().users if user.user != "0"}
