"""Which config is best for a key: what is known, what has to be measured, and what that leads to."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from triton import knobs
from triton.runtime.autotuner import Config
from triton.runtime.errors import AutotunerError

from compilepool.triton.compiler import default_compiler
from compilepool.triton.descending import descend
from compilepool.triton.device import subject_of
from compilepool.triton.measuring import Call, measure, name_of
from compilepool.triton.timings import Subject, TimingStore, directory

if TYPE_CHECKING:
    from compilepool.triton.autotuner import Autotuner

_NEVER = float("inf")
Times = Mapping[str, float | None]


def timing_store() -> TimingStore:
    """Where this process's autotuners keep times."""
    return TimingStore(directory(os.environ), default_compiler().pool)


def tune(tuner: "Autotuner", key: tuple[Any, ...], call: Call) -> Config:
    """The best config, measured as far as nobody has; one that is ready, if that will do and others are on their way.

    Raises AutotunerError when none can be launched.
    """
    began = time.monotonic()
    configs = tuner.pruned(call)
    subject, store = subject_of(tuner.jit, call.described_key(tuner.keys)), timing_store()
    with store.measuring(subject):
        known = store.load(subject)
        missing = [config for config in configs if name_of(config) not in known]
        if missing:
            # Beside the one that was best before: times of another day are not quite of this one.
            wanted = [*missing, *(config for config in configs if name_of(config) == _best_of(known, configs))]
            warmups = tuner.pending.pop(key, None) or tuner.warm(wanted, call)
            if tuner.first == "ready" and not warmups.done:
                tuner.pending[key] = warmups
                return warmups.first_ready()
            known = store.add(subject, measure(tuner, warmups, call).times)
        times = {config: known.get(name_of(config)) for config in configs}
        if tuner.descend:
            times |= _descended(tuner, call, times, known, subject, store)
    return _settle(tuner, key, times, time.monotonic() - began)


def _descended(
    tuner: "Autotuner",
    call: Call,
    times: Mapping[Config, float | None],
    known: Times,
    subject: Subject,
    store: TimingStore,
) -> dict[Config, float | None]:
    """A better config than those that were given, if there is one nearby; with its time."""
    start = min(times, key=lambda config: _NEVER if (taken := times[config]) is None else taken)
    if times[start] is None:
        return {}
    found, measured, tuner.report = descend(tuner, call, start, known)
    known = store.add(subject, measured) if measured else known
    return {found: known.get(name_of(found))}


def _settle(tuner: "Autotuner", key: tuple[Any, ...], times: Mapping[Config, float | None], took: float) -> Config:
    tuner.configs_timings = {config: _NEVER if taken is None else taken for config, taken in times.items()}
    tuner.bench_time = took
    config = min(tuner.configs_timings, key=lambda config: tuner.configs_timings[config])
    if tuner.configs_timings[config] == _NEVER:
        raise AutotunerError(f"none of the {len(times)} configs of {tuner.__name__} can be launched here")
    tuner.cache[key] = config
    if knobs.autotuning.print:
        # TRITON_PRINT_AUTOTUNING; in Triton's own words, which scripts look for.
        told = f"for function {tuner.__name__},\nwith key as {key},\nfinished after {took:.2f}s"
        sys.stdout.write(f"Triton autotuning {told},\nbest config selected: {config};\n")
    return config


def _best_of(known: Times, configs: Sequence[Config]) -> str | None:
    names = {name_of(config) for config in configs}
    times = {name: taken for name, taken in known.items() if taken is not None and name in names}
    return min(times, key=lambda name: times[name]) if times else None
