"""What a forkserver without torch compiles once: plain Triton kernels need no more, and it is there in a second."""

import os
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource

from compilepool.daemon.worker import jit, lowering
from compilepool.daemon.worker.stages import note_stages

_TARGETS = (GPUTarget("cuda", 90, 32),)


@triton.jit  # type: ignore[untyped-decorator]
def _double(source, target, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(target + at, 2 * tl.load(source + at, at < count), at < count)


def warm_up(root: Path) -> str:
    """Compile once, in this process, below the scratch directory `root`."""
    note_stages()
    compile_once(root)
    lowering.remember_environment()
    # Once here, and not in every worker.
    lowering.toolchain_digest()
    return ""


def compile_once(cache: Path) -> None:
    """A small kernel, into this cache."""
    os.environ["TRITON_CACHE_DIR"] = str(cache)
    for target in _TARGETS:
        signature = {"source": "*fp32", "target": "*fp32", "count": "i32", "block": "constexpr"}
        triton.compile(ASTSource(_double, signature, {"block": 128}), target=target)
        jit.facts_of(next(cache.glob("*/_double.ttir")).read_text(), ["source", "target", "count"])
