"""An autotuner as plain values: between processes, between versions of Triton, and without any function.

What travels: configs, keys, what was chosen, times, and compiled kernels with what launching them takes. What does not:
the Python function and everything that a program has hung on it (hooks, prunings, benchmarks). Who launches what has
arrived needs none of those. For a call that nobody has compiled for, the function is imported by the name that it has
in its module; it must be the same function, by Triton's own key, and brings its hooks along.

Kernels that another version of Triton has compiled are left aside; what was chosen stays.
"""

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from triton.runtime.autotuner import Config
from triton.runtime.jit import JITFunction

from compilepool.daemon.worker.content import content_key
from compilepool.triton.launching import Parameter
from compilepool.triton.measuring import name_of
from compilepool.triton.resetting import Resetting
from compilepool.triton.results import CompileResult

if TYPE_CHECKING:
    from compilepool.triton.autotuner import Autotuner

FORMAT = 1
_PLAIN = ("arg_names", "keys", "reset_to_zero", "restore_value", "first", "descend", "most_spills", "configs_top_k")
_CONFIG = ("kwargs", "num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override")
# What a program hangs on an autotuner, and is a function or holds one.
_LET_GO = ("_fn", "base_fn", "pre_hook", "post_hook", "perf_model", "early_config_prune", "_do_bench")


class FunctionChanged(RuntimeError):
    """What is imported is not what the autotuner was made for; the message says what to do."""


class Launchable(NamedTuple):
    """A compiled kernel that has arrived, and its config."""

    config: Config
    result: CompileResult


@dataclass(frozen=True)
class Reference:
    """Where the function is: its module and name there; a hash of its content; its parameters."""

    module: str
    qualname: str
    content: str
    parameters: list[Parameter] | None

    @property
    def name(self) -> str:
        """The function's."""
        return self.qualname.rpartition(".")[2]

    def load(self) -> Any:
        """The autotuner or function that has this name; raises FunctionChanged if it is another one."""
        try:
            found: Any = importlib.import_module(self.module)
            for part in self.qualname.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as exc:
            told = f"{self.module}.{self.qualname} is not there to be imported ({exc})"
            raise FunctionChanged(f"{told}: only what was compiled before can be launched") from exc
        inner = _jit(found)
        if content_key(inner) != self.content:
            told = f"{self.module}.{self.qualname} is not the function that this autotuner was made for"
            raise FunctionChanged(f"{told}: make it anew from the one that is there now")
        return found


def _jit(found: Any) -> Any:
    while not isinstance(found, JITFunction):
        found = found.fn
    return found


def reference_to(tuner: "Autotuner") -> Reference:
    """To an autotuner's function."""
    if isinstance(tuner._fn, Reference):
        return tuner._fn
    jit = tuner.jit
    parameters = [Parameter.of(p) for p in jit.params] if tuner._fn is jit else None
    return Reference(jit.__module__, jit.__qualname__, content_key(jit), parameters)


def take_over(tuner: "Autotuner", found: Any) -> None:
    """The function is needed: what was imported is put in, with the hooks that it has."""
    source = vars(found) if hasattr(found, "configs") else {"_fn": found, "base_fn": _jit(found).fn}
    for name in _LET_GO:
        if name in source:
            setattr(tuner, name, source[name])
    # Configs with hooks of their own are those of the function's own list.
    own = {name_of(config): config for config in source.get("configs", ()) if config.pre_hook}
    bare = {name.rpartition(", pre_hook=")[0]: config for name, config in own.items()}
    tuner.configs = [bare.get(name_of(config), config) for config in tuner.configs]
    tuner.cache = {key: bare.get(name_of(config), config) for key, config in tuner.cache.items()}
    tuner._launch = None


def let_go(tuner: "Autotuner") -> dict[str, Any]:
    """Strip an autotuner in place; what was taken from it."""
    state = state_of(tuner)
    old = dict(vars(tuner))
    tuner.__dict__.clear()
    tuner._begin()
    restore(tuner, state)
    return old


def state_of(tuner: "Autotuner") -> dict[str, Any]:
    """What travels."""
    own = vars(tuner)
    return {
        "format": FORMAT,
        "function": reference_to(tuner),
        "configs": [_described(config) for config in tuner.configs],
        **{name: own[name] for name in _PLAIN if name in own},
        "chosen": [(key, _described(config)) for key, config in tuner.cache.items()],
        "times": [(_described(config), taken) for config, taken in own.get("configs_timings", {}).items()],
        "kernels": [*_launchables(tuner)],
    }


def _launchables(tuner: "Autotuner") -> list[tuple[Any, dict[str, Any], CompileResult]]:
    arrived = [(key, _described(one.config), one.result) for key, one in tuner._travelled.items()]
    here = [
        (key[1:], _described(config), CompileResult.of(kernel))
        for key, (kernel, _, config) in tuner._known.items()
        if _is_plain(key)
    ]
    return [*arrived, *here]


def restore(tuner: "Autotuner", state: dict[str, Any]) -> None:
    """Make an autotuner of what has arrived."""
    if state.get("format") != FORMAT:
        raise ValueError(f"this autotuner is of format {state.get('format')!r}; this version reads {FORMAT}")
    configs = {str(described): Config(**described) for described in state["configs"]}

    def config(described: dict[str, Any]) -> Config:
        return configs.setdefault(str(described), Config(**described))

    tuner.fn = state["function"]
    tuner.configs = [config(described) for described in state["configs"]]
    for name in _PLAIN:
        if name in state:
            setattr(tuner, name, state[name])
    tuner.cache = {key: config(described) for key, described in state["chosen"]}
    tuner.configs_timings = {config(described): taken for described, taken in state["times"]}
    tuner._travelled = {key: Launchable(config(told), result) for key, told, result in state["kernels"]}
    tuner.nargs = tuner.best_config = tuner.report = None
    # What hooks it had comes with its function.
    none = Resetting([], [])
    tuner.pre_hook, tuner.post_hook = none.before, none.after
    tuner.perf_model = tuner.early_config_prune = tuner._do_bench = None


def _described(config: Config) -> dict[str, Any]:
    return {name: getattr(config, name) for name in _CONFIG if hasattr(config, name)}


def _is_plain(key: Any) -> bool:
    parts = key if isinstance(key, tuple) else (key,)
    return all(
        _is_plain(part) if isinstance(part, tuple) else part is None or isinstance(part, bool | int | float | str)
        for part in parts
    )
