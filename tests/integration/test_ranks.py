"""Several processes of one job: every kernel is compiled once."""

import json
import subprocess
import sys

from compilepool.corpus import bundled
from tests.conftest import Daemon

RANK = """
import json, sys, compilepool
from compilepool.corpus import bundled
kernels = bundled("llama_train")
with compilepool.connect(sys.argv[1], autostart=False, fallback=False) as pool:
    print("ready", flush=True)
    sys.stdin.readline()
    futures = [pool.warm(k.name, k.source, priority="foreground") for k in kernels]
    answers = [future.result(timeout=240) for future in futures]
    print(json.dumps([[unit.triton_hash for unit in a.contents.units] for a in answers]))
"""


def test_four_processes_that_submit_the_same_kernels_cause_one_compile_of_each(daemon: Daemon) -> None:
    command = [sys.executable, "-c", RANK, str(daemon.socket)]
    ranks = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for rank in ranks:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "ready\n"
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write("go\n")
        rank.stdin.flush()
    said = [rank.communicate(timeout=240)[0] for rank in ranks]
    assert len(set(said)) == 1
    units = [tuple(unit) for unit in json.loads(said[0])]
    kernels = len(bundled("llama_train"))
    assert len(units) == kernels
    counters = daemon.status().counters
    assert counters["units_compiled"] == sum(len(unit) for unit in units)
    assert counters["jobs_compiled"] == kernels
    assert counters["requests"] == 4 * kernels
