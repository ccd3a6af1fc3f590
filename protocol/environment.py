"""Which environment variables decide what a kernel compiles to.

A client sends these and no others; a worker unsets these and sets what the request has. So both ends must agree on the
list: it is part of the protocol. Variables that only say where files are kept are never sent: every worker has a
scratch directory of its own, and a path must not split a key.
"""

from collections.abc import Mapping

# Triton's and LLVM's knobs (triton/knobs.py and the C++ side's getenv), Inductor's, and what finds ROCm. CUDA_HOME is
# read by the program alone, which sets TRITON_LIBDEVICE_PATH by it (torch/_inductor/runtime/compile_tasks.py).
_PREFIXES = ("TRITON_", "TORCHINDUCTOR_", "MLIR_", "LLVM_", "AMDGCN_", "NVPTX_")
_NAMES = frozenset({"DISABLE_LLVM_OPT", "DISABLE_PTXAS_OPT", "PTXAS_OPTIONS", "ROCM_PATH", "USE_IR_LOC"})
_PLACES = frozenset({"TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"})

# What loads code into an interpreter: a part of the toolchain, since a forkserver is started with it.
LIBRARY_VARIABLES = (
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "LD_AUDIT",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONUSERBASE",
    "PYTHONNOUSERSITE",
)


def decides_compiles(name: str) -> bool:
    """Whether a variable of this name may change what a kernel compiles to, or where it is cached."""
    return name.startswith(_PREFIXES) or name in _NAMES


def may_be_set(name: str) -> bool:
    """Whether a request may set a variable of this name: what loads code is the toolchain's, and no request's."""
    return decides_compiles(name) and name not in _PLACES


def compile_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that a request carries."""
    return {name: value for name, value in environ.items() if may_be_set(name)}
