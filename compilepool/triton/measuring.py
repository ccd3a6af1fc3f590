"""How long each config takes, on this process's device, while the pool compiles the next."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import triton
from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime.autotuner import Config
from triton.runtime.errors import OutOfResources, PTXASError

from compilepool.protocol.errors import CompilePoolError
from compilepool.triton.compiler import ANSWERED
from compilepool.triton.guard import guarded
from compilepool.triton.warmups import Warmups

if TYPE_CHECKING:
    from compilepool.triton.autotuner import Autotuner

log = logging.getLogger("compilepool")

# What drops a config, as with Triton.
_DROPS = (OutOfResources, CompileTimeAssertionFailure, PTXASError)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a kernel: its arguments, by position and by name, and its grid."""

    arg_names: Sequence[str]
    args: Sequence[Any]
    kwargs: dict[str, Any]
    grid: Any

    @property
    def positional(self) -> dict[str, Any]:
        """Arguments given by position, by their names."""
        return dict(zip(self.arg_names, self.args, strict=False))

    def values(self, config: Config) -> dict[str, Any]:
        """All arguments by name, with those that the config sets."""
        return {**self.positional, **self.kwargs, **config.all_kwargs()}

    def hook_values(self, config: Config) -> dict[str, Any]:
        """What hooks are given: with the grid among it, as Triton has it."""
        return {**self.values(config), "grid": self.grid, "warmup": False}

    def with_arguments(self, arguments: Mapping[str, Any]) -> "Call":
        """The same call of these."""
        positional = [arguments[name] for name in self.positional]
        return Call(self.arg_names, positional, {name: arguments[name] for name in self.kwargs}, self.grid)

    def run(self, fn: Any, config: Config, *, warmup: bool = False) -> Any:
        """Have it launched by Triton, or only compiled; the compiled kernel."""
        named = {**self.kwargs, **config.all_kwargs()}
        return fn.run(*self.args, grid=self.grid, warmup=warmup, **named)

    def key(self, keys: Sequence[str]) -> tuple[Any, ...]:
        """By what a config is chosen: as with Triton, the named values, and the types of all arguments."""
        given = self._given()
        named = [given[name] for name in keys if name in given]
        return (*named, *(str(value.dtype) for value in given.values() if hasattr(value, "dtype")))

    def described_key(self, keys: Sequence[str]) -> list[str]:
        """The same for people, and for other processes: 'M=128', 'a: torch.float16'."""
        given = self._given()
        types = [f"{name}: {value.dtype}" for name, value in given.items() if hasattr(value, "dtype")]
        return [f"{name}={given[name]}" for name in keys if name in given] + types

    def _given(self) -> dict[str, Any]:
        return {name: value for name, value in {**self.positional, **self.kwargs}.items() if name in self.arg_names}


def name_of(config: Config) -> str:
    """A config as timings name it."""
    told = ", ".join(f"{name}={value}" for name, value in sorted(config.all_kwargs().items()))
    hook = config.pre_hook
    return told if hook is None else f"{told}, pre_hook={getattr(hook, '__qualname__', type(hook).__qualname__)}"


class Measured(NamedTuple):
    """Milliseconds of configs by name; None: it is none for this device.

    lost: those that the pool has failed at (crashes, limits): they may do better another day
    """

    times: dict[str, float | None]
    lost: list[str]


def measure(tuner: "Autotuner", warmups: Warmups, call: Call) -> Measured:
    """Each config that was warmed up."""
    measured = Measured({}, [])

    def dropped(config: Config, error: Exception) -> None:
        drop(config, error)
        if isinstance(error, CompilePoolError):
            measured.lost.append(name_of(config))

    with guarded({**call.positional, **call.kwargs}, tuner.__name__) as guard:
        for config, kernel in warmups.as_compiled(dropped):
            name = name_of(config)
            if kernel is not None and _fits(kernel) and _spills(kernel) <= tuner.most_spills:
                guarded_call = call.with_arguments(guard.for_kernel(kernel))
                measured.times[name] = time_of(tuner, config, guarded_call)
            elif name not in measured.lost:
                measured.times[name] = None
    return measured


def drop(config: Config | None, error: Exception) -> None:
    """An error of one config leaves the others; what is wrong with the kernel itself is raised."""
    if not isinstance(error, (*_DROPS, CompilePoolError)):
        raise error
    if isinstance(error, CompilePoolError):
        log.warning("a config is left out%s: %s", f" ({config})" if config else "", error)


def time_of(tuner: "Autotuner", config: Config, call: Call) -> float | None:
    """Milliseconds of one config with these arguments, which it may spoil; None: it can't be launched here."""
    values = call.hook_values(config)

    def launch() -> None:
        if config.pre_hook:
            config.pre_hook(values)
        tuner.pre_hook(values)
        try:
            call.run(tuner.fn, config)
        except Exception as exc:
            tuner.post_hook(values, exception=exc)
            raise
        tuner.post_hook(values, exception=None)

    try:
        taken = tuner.do_bench(launch, quantiles=(0.5, 0.2, 0.8))
    except _DROPS as exc:
        log.debug("%s, config %s: %s", tuner.__name__, config, exc)
        return None
    median = float(taken[0] if isinstance(taken, Sequence) else taken)
    return median if median != float("inf") else None


def _spills(kernel: Any) -> float:
    """Registers of a thread that are kept in memory; 0 where nobody knows before it is launched."""
    answered = getattr(kernel, ANSWERED, None)
    spills = answered[0].spills if answered else getattr(kernel, "n_spills", None)
    return float(spills or 0)


def _fits(kernel: Any) -> bool:
    """Whether the device has the shared memory that it takes; a driver that can't say is asked by a launch."""
    driver = triton.runtime.driver.active
    try:
        most = driver.utils.get_device_properties(driver.get_current_device())["max_shared_mem"]
    except (AttributeError, KeyError, RuntimeError):
        return True
    return bool(kernel.metadata.shared <= most)
