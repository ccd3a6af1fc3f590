"""What a worker may take, and what is said to whom it stopped: its time, its memory with its children's, its output.

The forkserver looks at them five times a second while anything runs. A worker that grows by a gigabyte a second is past
its limit by a fifth of that when it is stopped, so it is killed without notice; the others are told to end first.
"""

import os
import time
from collections.abc import Iterator

from compilepool.daemon.worker.family import exact_memory_of, memory_of, resident
from compilepool.daemon.worker.process import Worker
from compilepool.protocol.errors import Failure

# What is kept for an error message is its end; a chatty compiler prints some kilobytes.
OUTPUT_BYTES = 16 << 20
_MIB = 1 << 20


def exceeded(workers: Iterator[Worker]) -> Iterator[tuple[Worker, Failure]]:
    """The working workers that are over a limit of theirs, each with what to say of it."""
    shared, now = resident(os.getpid()), time.monotonic()
    for worker in workers:
        if worker.job is not None and worker.verdict is None and (verdict := _verdict(worker, shared, now)):
            yield worker, verdict


def _verdict(worker: Worker, shared: int, now: float) -> Failure | None:
    assert worker.job is not None
    limits, kernel, where = worker.job.limits, worker.job.kernel, worker.where()
    if not worker.assisting and now - worker.started > limits.seconds:
        told = f"it was stopped after {limits.seconds:g} s, its time limit ({where})"
        return Failure("timeout", told, kernel)
    if memory_of(worker.pid, shared) > limits.memory and (memory := exact_memory_of(worker.pid)) > limits.memory:
        told = f"it took {memory // _MIB} MiB of memory, and its limit is {limits.memory // _MIB} MiB ({where})"
        return Failure("out-of-memory", told, kernel)
    if (printed := worker.printed()) > OUTPUT_BYTES:
        told = f"it printed {printed // _MIB} MiB, and its limit is {OUTPUT_BYTES // _MIB} MiB ({where})"
        return Failure("worker-crashed", told, kernel)
    return None
