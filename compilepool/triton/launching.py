"""Launchers: one generated function for each compiled kernel, with as little between the call and the driver as can be.

    torch's launcher in C++, which Inductor's kernels use, where there is a torch that has it; else Triton's own in C

Triton's own `run` packs its arguments twice, and its launchers on NVIDIA GPUs go by a Python object that allocates
scratch memory. Kernels that need scratch memory, host-side descriptors or hooks are launched by Triton's own `run`.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import triton

# What Triton's launcher in C is called with, and in which order (triton/backends/nvidia/driver.py, CudaLauncher's
# __call__): scratch memory, which is not wanted here, comes before the packed metadata in 3.6, and after it since.
_IN_A_ROW = "@c({grid}, @stream(@device), @f, @coop, @pdl, None, None, @packed, None, None, None, {arguments})"
_IN_A_TUPLE = (
    "@c({grid}, @stream(@device), @f, @coop, @pdl, @packed, None, None, None, None, None, @notes, @signature, "
    "({arguments}))"
)
_BY_ITS_LAUNCHER = "@c({grid}, @stream(@device), @f, @packed, None, None, None, {arguments})"
_BY_TORCH = "@c(@f, {grid}, @warps, @shared, @types, ({arguments}), @stream(@device))"

_ANY_GRID = """
def @launch(@grid, {parameters}):
    if @callable(@grid):
        @grid = @grid({bound})
    @size = @len(@grid)
    @g1, @g2 = @grid[1] if @size > 1 else 1, @grid[2] if @size > 2 else 1
    {call}
"""
_ONE_GRID = """
def @launch({parameters}):
    {call}
"""
# Of torch's launcher (torch/_inductor/runtime/static_triton_launcher.py, type_mappings); half precision is left out.
_TYPES = {
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
        return cls(
            told.name,
            told.is_constexpr,
            told.is_const,
            bool(told.do_not_specialize),
            bool(told.do_not_specialize_on_alignment),
            told.has_default,
            told.default if told.has_default else None,
        )


def generate(text: str, parameters: Sequence[Parameter], space: dict[str, Any]) -> Callable[..., Any]:
    """The function `@launch` of a text; '@' stands for what no parameter's name begins with, in `space` too."""
    mark = "_" * (1 + max((len(p.name) - len(p.name.lstrip("_")) for p in parameters), default=0)) + "cp_"
    defaults = {f"{mark}default_{p.name}": p.default for p in parameters if p.has_default}
    made: dict[str, Any] = {f"{mark}{name}": value for name, value in space.items()}
    plain = {name.removeprefix(mark + "="): made.pop(name) for name in list(made) if name.startswith(mark + "=")}
    made.update({f"{mark}callable": callable, f"{mark}len": len, **defaults, **plain})
    exec(text.replace("@", mark), made)  # noqa: S102 - made of the names of a function's parameters
    function: Callable[..., Any] = made[f"{mark}launch"]
    return function


def signature(parameters: Sequence[Parameter], chosen: frozenset[str]) -> list[str]:
    """What a caller passes; by name only, what comes after a parameter that the config sets."""
    told: list[str] = []
    for before, p in zip((None, *parameters), parameters, strict=False):
        if p.name in chosen:
            continue
        if "*" not in told and before is not None and before.name in chosen:
            told.append("*")
        told.append(f"{p.name}=@default_{p.name}" if p.has_default else p.name)
    return told


def passed_on(parameters: Sequence[Parameter], chosen: frozenset[str]) -> str:
    """The same arguments, as one of these functions passes them to another."""
    told, by_name = [], False
    for one in signature(parameters, chosen):
        name = one.partition("=")[0]
        by_name = by_name or one == "*"
        told.append(f"{name}={name}" if by_name else name)
    return ", ".join(one for one in told if not one.startswith("*"))


def launcher(
    kernel: Any, parameters: Sequence[Parameter], values: dict[str, Any], grid: tuple[int, ...] | None = None
) -> Callable[..., Any] | None:
    """`launch(grid, *arguments)` of a compiled kernel; with a grid, `launch(*arguments)`. None: it can't be done so.

    values: of the parameters that a config sets
    """
    run = kernel.run
    if getattr(run, "global_scratch_size", 0) or getattr(run, "profile_scratch_size", 0):
        return None
    if any(not isinstance(type_, str) or "desc" in type_.lower() for type_ in kernel.src.signature.values()):
        return None
    names = [p.name for p in parameters]
    call, space = _by_torch(kernel) or _by_triton(kernel, names)
    driver = triton.runtime.driver.active
    g0, g1, g2 = (*(grid or ()), 1, 1, 1)[:3]
    text = _ANY_GRID if grid is None else _ONE_GRID
    told = text.format(
        parameters=", ".join(signature(parameters, frozenset(values))),
        bound="{" + ", ".join(f"'{name}': {name}" for name in names) + "}",
        call=call.replace("{grid}", "@grid[0], @g1, @g2" if grid is None else "@g0, @g1, @g2"),
    )
    more = {f"={name}": value for name, value in values.items() if name in names}
    space |= {"f": kernel.function, "device": driver.get_current_device(), "stream": driver.get_current_stream}
    return generate(told, parameters, {**space, "g0": g0, "g1": g1, "g2": g2, **more})


def _by_triton(kernel: Any, names: Sequence[str]) -> tuple[str, dict[str, Any]]:
    run = kernel.run
    told = {
        "c": getattr(run, "launch", run),
        "packed": kernel.packed_metadata,
        "coop": getattr(run, "launch_cooperative_grid", False),
        "pdl": getattr(run, "launch_pdl", False),
        "notes": getattr(run, "arg_annotations", None),
        "signature": getattr(run, "kernel_signature", None),
    }
    form = _IN_A_TUPLE if "kernel_metadata" in _names_in(type(run)) else _IN_A_ROW
    if type(run).__name__ != "CudaLauncher":
        form, told["c"] = _BY_ITS_LAUNCHER, run
    return form.replace("{arguments}", "".join(f"{name}, " for name in names)), told


def _names_in(kind: Any) -> Sequence[str]:
    code = getattr(kind.__call__, "__code__", None)
    return code.co_varnames if code else ()


def _by_torch(kernel: Any) -> tuple[str, dict[str, Any]] | None:
    """Its arguments are those that are no constants, and two more pointers, for scratch memory."""
    run, metadata = kernel.run, kernel.metadata
    static = getattr(getattr(sys.modules.get("torch"), "_C", None), "_StaticCudaLauncher", None)
    special = getattr(run, "launch_cooperative_grid", True) or getattr(run, "launch_pdl", True)
    if static is None or special or metadata.num_ctas != 1 or type(run).__name__ != "CudaLauncher":
        return None
    passed = {name: type_ for name, type_ in kernel.src.signature.items() if type_ != "constexpr"}
    types = ["O" if type_.startswith("*") else _TYPES.get(type_, "") for type_ in passed.values()]
    if not all(types):
        return None
    told = {"c": static._launch_kernel, "warps": metadata.num_warps, "shared": metadata.shared}
    arguments = "".join(f"{name}, " for name in (*passed, "None", "None"))
    return _BY_TORCH.replace("{arguments}", arguments), {**told, "types": "".join(types) + "OO"}
