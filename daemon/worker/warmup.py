"""What a forkserver compiles once before its first fork.

Everything that a first compile does once (triton_key hashes a 300 MB library, backends ask ptxas for its version,
modules import lazily) is then in the memory that workers share: 40 kernels took 36.0 s of CPU without it, 12.8 s with.
The kernel has several configs, a reduction and a libdevice call, because each of these has a path of its own.
"""

from pathlib import Path

from compilepool.daemon.worker import lowering
from compilepool.daemon.worker.board import own_board
from compilepool.daemon.worker.compile import compile_kernel, scratch
from compilepool.daemon.worker.stages import note_stages
from compilepool.protocol.messages import Recipe

_SOURCE = """
import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.reduction(
    size_hints={'x': 1024, 'r0_': 4096},
    reduction_hint=ReductionHint.DEFAULT,
    filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32',
                               'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'},
                 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9,
                                            regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048,
                                            max_threads_per_block=1024, warp_size=32),
                 'constants': {}, 'configs': [{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]]}]},
    inductor_meta={'grid_type': 'Grid1D', 'kernel_name': 'warmup', 'mutated_arg_names': [], 'num_load': 1,
                   'num_store': 1, 'num_reduction': 1, 'autotune_local_cache': True, 'autotune_pointwise': True},
)
@triton.jit
def warmup(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    total = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + tl.arange(0, R0_BLOCK)[None, :]
        mask = (r0_index < r0_numel) & (xindex < xnumel)
        total += libdevice.rsqrt(tl.load(in_ptr0 + (r0_index + r0_numel * xindex), mask, other=1.0))
    tl.store(out_ptr0 + xindex, tl.sum(total, 1)[:, None], xindex < xnumel)
"""


def warm_up(root: Path) -> str:
    """Compile once, in this process, below the scratch directory `root`; raises CompileError if even that fails."""
    note_stages()
    place = scratch(root, "")
    place.enter()
    compile_kernel(Recipe("warmup", {}, {}), _SOURCE, place, own_board())
    lowering.remember_environment()
    # Once here, and not in every worker.
    lowering.toolchain_digest()
    return ""
