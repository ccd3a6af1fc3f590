"""Walks a descent on this process's device, with what may come next compiled by the pool meanwhile."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from triton.runtime.autotuner import Config

from compilepool.protocol.messages import Priority
from compilepool.triton.descent import Descent, Point, is_block, point
from compilepool.triton.measuring import Call, measure, name_of
from compilepool.triton.warmups import Warmups, wait_for_any

if TYPE_CHECKING:
    from compilepool.triton.autotuner import Autotuner

log = logging.getLogger("compilepool")

# Beyond those that are wanted now; on 16 cores, more would only keep each other waiting.
AHEAD = 16
_LAUNCH = ("num_warps", "num_stages")


@dataclass(slots=True)
class Report:
    """How a descent went; seconds, and of these the ones that a compiler was waited for."""

    steps: int = 0
    measured: int = 0
    took: float = 0.0
    waited: float = 0.0


def descend(
    tuner: "Autotuner", call: Call, start: Config, known: Mapping[str, float | None], ahead: int = AHEAD
) -> tuple[Config, dict[str, float | None], Report]:
    """The best config that is to be reached from `start`, what was measured on the way, and how that went.

    ahead: how many configs that may be wanted later are compiled meanwhile; 0: one after the other, when it is wanted
    """
    began, report = time.monotonic(), Report()
    descent = Descent(_numbers(start), {_numbers(one): known[name] for name, one in _alike(start, known)})
    asked: dict[Point, Warmups] = {}
    measured: dict[str, float | None] = {}

    def ask(points: list[Point], priority: Priority) -> None:
        for one in points:
            config = _config(start, one)
            if not _is_allowed(tuner, call, config):
                descent.told(one, None)
            elif one not in asked:
                asked[one] = tuner.warm([config], call, priority)

    while wanted := descent.wanted()[: None if ahead else 1]:
        ask(wanted, "foreground")
        if not (waiting := [one for one in wanted if one not in descent.times]):
            continue
        ask(descent.soon(ahead), "background")
        waited = time.monotonic()
        candidate = _first_ready(waiting, asked)
        report.waited += time.monotonic() - waited
        config = _config(start, candidate)
        times = measure(tuner, asked.pop(candidate), call).times
        measured |= times
        descent.told(candidate, times.get(name_of(config)))
    for left in asked.values():
        left.cancel()
    report.steps, report.measured, report.took = descent.steps, len(measured), time.monotonic() - began
    log.debug("%s: %s", tuner.__name__, report)
    return _config(start, descent.best) if descent.steps else start, measured, report


def _first_ready(points: list[Point], asked: Mapping[Point, Warmups]) -> Point:
    """Whichever of these is compiled first."""
    wait_for_any([asked[one] for one in points])
    return next(one for one in points if asked[one].done)


def _is_allowed(tuner: "Autotuner", call: Call, config: Config) -> bool:
    """Whether the program's own pruning lets it pass."""
    if tuner.early_config_prune is None:
        return True
    return bool(tuner.early_config_prune([config], call.positional, **call.kwargs))


def _numbers(config: Config) -> Point:
    blocks = {name: value for name, value in config.kwargs.items() if is_block(value)}
    return point({**blocks, **{name: getattr(config, name) for name in _LAUNCH}})


def _config(start: Config, numbers: Point) -> Config:
    values = dict(numbers)
    launch = {name: values.pop(name) for name in _LAUNCH}
    return Config(
        {**start.kwargs, **values},
        **launch,
        num_ctas=start.num_ctas,
        maxnreg=start.maxnreg,
        pre_hook=start.pre_hook,
        ir_override=start.ir_override,
    )


def _alike(start: Config, known: Mapping[str, float | None]) -> list[tuple[str, Config]]:
    """Those of known configs that a descent from `start` could come to."""
    found = [(name, config_named(name, start)) for name in known]
    return [(name, config) for name, config in found if config is not None]


def config_named(name: str, like: Config) -> Config | None:
    """The config that timings name so, if it differs from another one in numbers alone."""
    told: dict[str, Any] = dict(part.partition("=")[::2] for part in name.split(", "))
    try:
        numbers = point({field: int(told[field]) for field, _ in _numbers(like)})
    except (KeyError, ValueError):
        return None
    made = _config(like, numbers)
    return made if name_of(made) == name else None
