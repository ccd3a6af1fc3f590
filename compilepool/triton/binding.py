"""The path of a launch whose kernel is known: one generated function for each autotuned kernel.

    call --> key: the device, the values that configs are chosen by, and what Triton specializes arguments by
               |  known: the launcher of the config that was chosen (`launching`)
               '- not known, or somebody listens to launches: the long way, through Triton's own `run`

Triton's own way asks the environment, binds arguments into dictionaries and makes a key of text for every launch. What
it looks at is looked at here too, except for variables of the environment: those count when a kernel is first launched.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import triton
from triton import knobs
from triton._C.libtriton import native_specialize_impl
from triton.backends.compiler import BaseBackend

from compilepool.triton.launching import Parameter, generate, passed_on, signature
from compilepool.triton.traffic import open_reports

_TEXT = """
def @launch({parameters}):
    @key = (@current_device(), {key})
    @heard = @options or @runtime.debug or @enter.calls or @leave.calls or @hooks or @reports
    @found = None if @heard else @known.get(@key)
    if (
        @found is None
        or @runtime.launch_enter_hook is not @enter_hook
        or @runtime.launch_exit_hook is not @leave_hook
        or (@kernel.used_global_vals and @changed(@kernel.used_global_vals))
    ):
        return @the_long_way(@key, @grid, {positional}, {named}, @options)
    @found[1](@grid, {arguments})
    @tuner.best_config = @found[2]
    return @found[0]
"""


@dataclass(frozen=True)
class Binding:
    """What one kernel's launches are made of.

    parameters: of the kernel
    keys: names of those by whose value a config is chosen; `chosen`: of those that a config sets
    """

    parameters: Sequence[Parameter]
    keys: Sequence[str]
    chosen: frozenset[str]

    def function(
        self, tuner: Any, known: dict[Any, Any], the_long_way: Callable[..., Any], kernel: Any, backend: BaseBackend
    ) -> Callable[..., Any]:
        """`launch(grid, *arguments, **more)`.

        known: by key, a compiled kernel, its launcher and its config
        kernel: the JITFunction, or None where nobody has it: what has arrived is launched without
        """
        runtime = knobs.runtime
        space = {
            "known": known,
            "the_long_way": the_long_way,
            "current_device": triton.runtime.driver.active.get_current_device,
            "runtime": runtime,
            "tuner": tuner,
            "kernel": kernel or _NO_KERNEL,
            # Chains of hooks, or one that somebody has put in the place of one.
            "enter_hook": runtime.launch_enter_hook,
            "leave_hook": runtime.launch_exit_hook,
            "enter": _chain(runtime.launch_enter_hook),
            "leave": _chain(runtime.launch_exit_hook),
            "hooks": kernel.pre_run_hooks if kernel else (),
            "reports": open_reports,
            "changed": _changed,
            "specialize": native_specialize_impl,
            "backend": backend,
        }
        given = [p for p in self.parameters if p.name not in self.chosen]
        names = [p.name for p in given]
        first = next((at for at, p in enumerate(self.parameters) if p.name in self.chosen), len(self.parameters))
        text = _TEXT.format(
            parameters=", ".join(["@grid", *signature(self.parameters, self.chosen), "**@options"]),
            key="".join(f"{part}, " for part in [*(n for n in self.keys if n in names), *map(_specialized, given)]),
            positional="(" + "".join(f"{name}, " for name in names[:first]) + ")",
            named="{" + ", ".join(f"'{name}': {name}" for name in names[first:]) + "}",
            arguments=passed_on(self.parameters, self.chosen),
        )
        return generate(text, self.parameters, space)


_NOBODY, _SOMEBODY = SimpleNamespace(calls=()), SimpleNamespace(calls=(None,))
_NO_KERNEL = SimpleNamespace(used_global_vals={})


def _chain(hook: Any) -> Any:
    """Something that tells by `calls` whether anybody listens."""
    return _NOBODY if hook is None else hook if hasattr(hook, "calls") else _SOMEBODY


def _changed(used: dict[Any, Any]) -> bool:
    """Whether a global that a kernel was compiled with has another value: Triton says so, on the long way."""
    missing = object()
    return any(space.get(name, missing) != value for (name, _), (value, space) in used.items())


def _specialized(parameter: Parameter) -> str:
    """What of an argument decides which compiled kernel it goes to (triton/runtime/jit.py, specialize_impl)."""
    if parameter.is_constexpr:
        return parameter.name
    special, aligned = not parameter.do_not_specialize, not parameter.do_not_specialize_on_alignment
    return f"@specialize(@backend, {parameter.name}, {parameter.is_const}, {special}, {aligned})"
