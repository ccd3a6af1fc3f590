"""The path of a launch whose kernel is known: one generated function for each autotuned kernel.

    call --> key: the device, the values that configs are chosen by, and what Triton specializes arguments by
               |  known: the launcher of the config that was chosen, called with no detour
               '- not known, or somebody listens to launches: the long way, through Triton's own `run`

Triton's own way asks the environment, binds arguments into dictionaries and makes a key of text for every launch. What
it looks at is looked at here too, except for variables of the environment: those count when a kernel is first launched.
Kernels that need scratch memory, host-side descriptors or a config's own `pre_hook` always go the long way.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import triton
from triton import knobs
from triton._C.libtriton import native_specialize_impl
from triton.backends.compiler import BaseBackend

# What Triton's launcher in C is called with, and in which order (triton/backends/nvidia/driver.py, CudaLauncher's
# __call__): scratch memory, which is not wanted here, comes before the packed metadata in 3.6, and after it since.
_IN_A_ROW = "c(g0, g1, g2, stream(device), f, coop, pdl, None, None, packed, None, None, None, {arguments})"
_IN_A_TUPLE = (
    "c(g0, g1, g2, stream(device), f, coop, pdl, packed, None, None, None, None, None, notes, signature, ({arguments}))"
)
_BY_ITS_LAUNCHER = "c(g0, g1, g2, stream(device), f, packed, None, None, None, {arguments})"

_TEXT = """
def launch({parameters}):
    device = current_device()
    key = (device, {key})
    found = None if options or runtime.debug or enter.calls or leave.calls or hooks else known.get(key)
    if found is None or (used and changed(used)):
        return the_long_way(key, grid, dict({named}), options)
    kernel, c, f, coop, pdl, packed, notes, signature, {chosen} = found
    if callable(grid):
        grid = grid({{{bound}}})
    size = len(grid)
    g0, g1, g2 = grid[0], grid[1] if size > 1 else 1, grid[2] if size > 2 else 1
    {call}
    return kernel
"""


@dataclass(frozen=True, slots=True)
class Parameter:
    """Of a kernel, as Triton describes it: what decides how its argument is specialized."""

    name: str
    is_constexpr: bool
    is_const: bool
    do_not_specialize: bool
    do_not_specialize_on_alignment: bool
    has_default: bool
    default: Any

    @classmethod
    def of(cls, told: Any) -> "Parameter":
        """The same, as plain values."""
        default = told.default if told.has_default else None
        return cls(
            told.name,
            told.is_constexpr,
            told.is_const,
            bool(told.do_not_specialize),
            bool(told.do_not_specialize_on_alignment),
            told.has_default,
            default,
        )


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
        self, known: dict[Any, Any], the_long_way: Callable[..., Any], kernel: Any, backend: BaseBackend
    ) -> Callable[..., Any]:
        """`launch(grid, *arguments, **more)`; entries of `known` are made by `entry`.

        kernel: the JITFunction, or None where nobody has it: what has arrived is launched without
        """
        driver = triton.runtime.driver.active
        runtime = knobs.runtime
        space: dict[str, Any] = {
            "known": known,
            "the_long_way": the_long_way,
            "current_device": driver.get_current_device,
            "stream": driver.get_current_stream,
            "runtime": runtime,
            "enter": runtime.launch_enter_hook or _NOBODY,
            "leave": runtime.launch_exit_hook or _NOBODY,
            "hooks": kernel.pre_run_hooks if kernel else (),
            "used": kernel.used_global_vals if kernel else {},
            "changed": _changed,
            "specialize": native_specialize_impl,
            "backend": backend,
            **{f"default_{p.name}": p.default for p in self.parameters if p.has_default},
        }
        exec(self._text(), space)  # noqa: S102 - made of the names of a function's parameters
        made: Callable[..., Any] = space["launch"]
        return made

    def _text(self) -> str:
        given = [p for p in self.parameters if p.name not in self.chosen]
        names = [p.name for p in given]
        return _TEXT.format(
            parameters=", ".join(["grid", *self._signature(), "**options"]),
            key="".join(f"{part}, " for part in [*(n for n in self.keys if n in names), *map(_specialized, given)]),
            named=", ".join(f"{name}={name}" for name in names),
            chosen="".join(f"{p.name}, " for p in self.parameters if p.name in self.chosen) or "_",
            bound=", ".join(f"'{p.name}': {p.name}" for p in self.parameters),
            call=_call_form().format(arguments="".join(f"{p.name}, " for p in self.parameters)),
        )

    def _signature(self) -> Iterator[str]:
        """What a caller passes; by name only, what comes after a parameter that the config sets."""
        by_name = False
        for before, p in zip((None, *self.parameters), self.parameters, strict=False):
            if p.name in self.chosen:
                continue
            if not by_name and before is not None and before.name in self.chosen:
                by_name = True
                yield "*"
            yield f"{p.name}=default_{p.name}" if p.has_default else p.name

    def launcher(self, kernel: Any, values: dict[str, Any], grid: Any) -> Callable[..., Any]:
        """`launch(*arguments)`: of one compiled kernel, for arguments like those that it was compiled for."""
        driver = triton.runtime.driver.active
        given = [p for p in self.parameters if p.name not in self.chosen]
        bound = ", ".join(f"'{p.name}': {p.name}" for p in self.parameters)
        passed, call = _direct_call(kernel, [p.name for p in self.parameters])
        lines = [
            f"def launch({', '.join(self._signature())}):",
            *([f"    grid = find_grid({{{bound}}})", *_GRID] if callable(grid) else []),
            f"    {call}",
        ]
        g0, g1, g2 = (*((1,) if callable(grid) else grid), 1, 1)[:3]
        space: dict[str, Any] = {
            **passed,
            **{name: value for name, value in values.items() if name in self.chosen},
            **{f"default_{p.name}": p.default for p in given if p.has_default},
            "find_grid": grid,
            "g0": g0,
            "g1": g1,
            "g2": g2,
            "device": driver.get_current_device(),
            "stream": driver.get_current_stream,
        }
        exec("\n".join(lines), space)  # noqa: S102 - as above
        made: Callable[..., Any] = space["launch"]
        return made

    def entry(self, kernel: Any, values: dict[str, Any]) -> tuple[Any, ...] | None:
        """How a compiled kernel is launched with the values of its config; None: not this way."""
        launcher = kernel.run
        if getattr(launcher, "global_scratch_size", 0) or getattr(launcher, "profile_scratch_size", 0):
            return None
        if any(str(told).startswith(("tensordesc", "nvTmaDesc")) for told in kernel.src.signature.values()):
            return None
        direct = _call_form() is not _BY_ITS_LAUNCHER
        chosen = [values[p.name] for p in self.parameters if p.name in self.chosen]
        return (
            kernel,
            launcher.launch if direct else launcher,
            kernel.function,
            getattr(launcher, "launch_cooperative_grid", False),
            getattr(launcher, "launch_pdl", False),
            kernel.packed_metadata,
            getattr(launcher, "arg_annotations", None),
            getattr(launcher, "kernel_signature", None),
            *(chosen or [None]),
        )


def _changed(used: dict[Any, Any]) -> bool:
    """Whether a global that a kernel was compiled with has another value: Triton says so, on the long way."""
    missing = object()
    return any(space.get(name, missing) != value for (name, _), (value, space) in used.items())


_GRID = (
    "    size = len(grid)",
    "    g0, g1, g2 = grid[0], grid[1] if size > 1 else 1, grid[2] if size > 2 else 1",
)
# Of torch's launcher, which Inductor's kernels use (torch/_inductor/runtime/static_triton_launcher.py, type_mappings).
_STATIC_TYPES = {
    "i8": "b",
    "i16": "h",
    "i32": "i",
    "i64": "l",
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "K",
    "fp32": "f",
    "fp64": "d",
}


def _direct_call(kernel: Any, names: Sequence[str]) -> tuple[dict[str, Any], str]:
    """How a kernel is launched with the least in between: what the call uses, and its text."""
    launcher = kernel.run
    told: dict[str, Any] = {
        "f": kernel.function,
        "packed": kernel.packed_metadata,
        "coop": getattr(launcher, "launch_cooperative_grid", False),
        "pdl": getattr(launcher, "launch_pdl", False),
        "notes": getattr(launcher, "arg_annotations", None),
        "signature": getattr(launcher, "kernel_signature", None),
    }
    if (static := _static_call(kernel, told)) is not None:
        return static
    form = _call_form()
    c = launcher if form is _BY_ITS_LAUNCHER else launcher.launch
    return {**told, "c": c}, form.format(arguments="".join(f"{name}, " for name in names))


def _static_call(kernel: Any, told: dict[str, Any]) -> tuple[dict[str, Any], str] | None:
    """By torch's own launcher in C++, if there is one and the kernel is one of those that it launches."""
    if "torch" not in sys.modules or told["coop"] or told["pdl"] or kernel.metadata.num_ctas != 1:
        return None
    static = getattr(sys.modules["torch"]._C, "_StaticCudaLauncher", None)
    passed = {name: type_ for name, type_ in kernel.src.signature.items() if type_ != "constexpr"}
    types = ["O" if str(type_).startswith("*") else _STATIC_TYPES.get(str(type_)) for type_ in passed.values()]
    if static is None or kernel.metadata.target.backend != "cuda" or None in types:
        return None
    # Scratch memory is two more pointers, and nobody wants any.
    types += ["O", "O"]
    arguments = "".join(f"{name}, " for name in (*passed, "None", "None"))
    call = f"c(f, g0, g1, g2, warps, shared, types, ({arguments}), stream(device))"
    metadata = kernel.metadata
    more = {"c": static._launch_kernel, "warps": metadata.num_warps, "shared": metadata.shared}
    return {**told, **more, "types": "".join(str(one) for one in types)}, call


class _Nobody:
    """Stands for a chain of hooks that is not there."""

    calls = ()


_NOBODY = _Nobody()


def _specialized(parameter: Any) -> str:
    """What of an argument decides which compiled kernel it goes to (triton/runtime/jit.py, specialize_impl)."""
    if parameter.is_constexpr:
        return str(parameter.name)
    special, aligned = not parameter.do_not_specialize, not parameter.do_not_specialize_on_alignment
    return f"specialize(backend, {parameter.name}, {parameter.is_const}, {special}, {aligned})"


def _call_form() -> str:
    """How this process's driver launches."""
    launcher: Any = getattr(triton.runtime.driver.active, "launcher_cls", None)
    if getattr(launcher, "__name__", "") != "CudaLauncher":
        return _BY_ITS_LAUNCHER
    return _IN_A_TUPLE if "kernel_metadata" in launcher.__call__.__code__.co_varnames else _IN_A_ROW
