"""Walks a descent on this process's device, with what may come next compiled by the pool meanwhile."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from triton.runtime.autotuner import Config

from compilepool.protocol.messages import Priority
from compilepool.triton.descent import Descent, Point, is_block, point
from compilepool.triton.measuring import Call, measure, name_of
from compilepool.triton.warmups import Warmups

if TYPE_CHECKING:
    from compilepool.triton.autotuner import Autotuner

log = logging.getLogger("compilepool")

# How many candidates are compiled ahead: those of two steps, of a config with five numbers.
AHEAD = 24
_LAUNCH = ("num_warps", "num_stages")

Warm = Callable[[list[Config], Call, Priority], Warmups]


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
    """The best config that is to be reached from `start`, what was measured on the way, and how that went."""
    began, report = time.monotonic(), Report()
    descent = Descent(_numbers(start), {_numbers(one): known[name] for name, one in _alike(start, known)})
    asked: dict[Point, Warmups] = {}
    measured: dict[str, float | None] = {}
    while (candidate := descent.next()) is not None:
        config = _config(start, candidate)
        if not _is_allowed(tuner, call, config):
            descent.told(candidate, None)
            continue
        for one in [candidate, *descent.soon(ahead)]:
            if one not in asked and _is_allowed(tuner, call, _config(start, one)):
                priority: Priority = "foreground" if one == candidate else "background"
                asked[one] = tuner.warm([_config(start, one)], call, priority)
        report.waited += _wait(asked[candidate])
        taken = measure(tuner, asked.pop(candidate), call)[name_of(config)]
        descent.told(candidate, taken)
        measured[name_of(config)] = taken
    for left in asked.values():
        left.cancel()
    report.steps, report.measured, report.took = descent.steps, len(measured), time.monotonic() - began
    log.debug("%s: %s", tuner.__name__, report)
    return _config(start, descent.best) if descent.steps else start, measured, report


def _wait(warmups: Warmups) -> float:
    began = time.monotonic()
    warmups.wait()
    return time.monotonic() - began


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
