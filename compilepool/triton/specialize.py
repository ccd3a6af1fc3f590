"""What Triton would compile for a call, without making it: for any target, and without a GPU.

The steps are those of `JITFunction.run`, with the backend of the target that is named in the place of the device's.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction, MockTensor, create_function_from_signature

from compilepool.triton.compilation import Compilation

# AMD's data-center GPUs (CDNA, gfx9) have wavefronts of 64; RDNA's have 32.
_WIDE = "gfx9"
_TARGET = re.compile(r"(?P<backend>cuda(?=:\d+)|hip(?=:gfx\d)):(?P<arch>\w+)(:(?P<warp>\d+))?")


class BadTarget(ValueError):
    """A target that no backend of this Triton compiles for; the message says what one looks like."""


def target_named(name: str) -> GPUTarget:
    """'cuda:90', 'hip:gfx942', ..., with a third part for threads of a warp; raises BadTarget."""
    found = _TARGET.fullmatch(name)
    if found is None:
        raise BadTarget(f"{name!r} is no target: 'cuda:90' and 'hip:gfx942' are")
    backend, arch, warp = found["backend"], found["arch"], found["warp"]
    is_hip = backend == "hip"
    width = int(warp) if warp else 64 if is_hip and arch.startswith(_WIDE) else 32
    return GPUTarget(backend, arch if is_hip else int(arch), width)


def compilation_for(kernel: Any, target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Compilation:
    """What a call of the kernel with these arguments compiles for a target; raises BadTarget, TypeError, KeyError.

    kernel: a JITFunction, or what heuristics have made of one; arguments: values, tensors, or types of torch's
    """
    values = dict(kwargs)
    mocked = [MockTensor.wrap_dtype(arg) for arg in args]
    while not isinstance(kernel, JITFunction):
        for name, heuristic in getattr(kernel, "values", {}).items():
            values[name] = heuristic({**dict(zip(kernel.arg_names, mocked, strict=False)), **values})
        kernel = kernel.fn
    wanted = target_named(target)
    try:
        backend = make_backend(wanted)
    except (RuntimeError, ValueError) as exc:
        raise BadTarget(f"{target!r} is no target of this Triton: {exc}") from exc
    values["debug"] = values.get("debug", kernel.debug) or triton.knobs.runtime.debug
    values["instrumentation_mode"] = triton.knobs.compilation.instrumentation_mode
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialization, more = bind(*mocked, **{name: MockTensor.wrap_dtype(v) for name, v in values.items()})
    options, signature, constants, attrs = kernel._pack_args(backend, values, bound, specialization, more)
    return Compilation(ASTSource(kernel, signature, constants, attrs), wanted, options.__dict__)
