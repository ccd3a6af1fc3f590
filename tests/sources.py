"""Kernel sources that tests write: real, gated, and bad ones."""

import os
from dataclasses import dataclass
from pathlib import Path

from compilepool.corpus import Kernel

_POINTWISE = """
import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.hints import DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={'x': 65536},
    filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
                 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9,
                                            regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048,
                                            max_threads_per_block=1024, warp_size=32),
                 'constants': {}, 'configs': [{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]]}]},
    inductor_meta={'grid_type': 'Grid1D', 'kernel_name': 'NAME', 'mutated_arg_names': [], 'num_load': 1,
                   'num_store': 1, 'num_reduction': 0, 'autotune_local_cache': True, 'autotune_pointwise': True},
    min_elem_per_thread=0
)
@triton.jit
def NAME(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    xmask = xindex < xnumel
    value = tl.load(in_ptr0 + xindex, xmask)
    tl.store(out_ptr0 + xindex, BODY, xmask)
"""


def pointwise(name: str, body: str = "value + 1.0", prelude: str = "") -> Kernel:
    """A small real kernel that stores `body`, computed from `value`; `prelude` is executed before it."""
    return Kernel(name, prelude + _POINTWISE.replace("NAME", name).replace("BODY", body))


@dataclass(frozen=True, slots=True)
class Gate:
    """Two FIFOs that hold a worker at a known place: it has `started`, and waits for `go`.

    It opens both for reading, which its sandbox lets it do; each waits for who opens the other end. Each serves one
    worker: the next one finds another FIFO there, so that nobody meets an end that the last one has yet to close.
    """

    started: Path
    go: Path

    def prelude(self) -> str:
        """What the kernel's source executes first."""
        return (
            "import os\n"
            f"os.close(os.open({str(self.started)!r}, os.O_RDONLY))\n"
            f"os.close(os.open({str(self.go)!r}, os.O_RDONLY))\n"
        )

    def wait_started(self) -> None:
        """Block until the worker is at the gate."""
        _meet(self.started)

    def open(self) -> None:
        """Let the worker go on."""
        _meet(self.go)


def _meet(fifo: Path) -> None:
    """Block until somebody reads from it; whoever comes next meets at a new one."""
    descriptor = os.open(fifo, os.O_WRONLY)
    new = Path(f"{fifo}.new")
    os.mkfifo(new)
    new.rename(fifo)
    os.close(descriptor)


def gate(folder: Path, name: str) -> Gate:
    """A new gate in `folder`."""
    made = Gate(folder / f"{name}.started", folder / f"{name}.go")
    os.mkfifo(made.started)
    os.mkfifo(made.go)
    return made


def held(folder: Path, name: str) -> tuple[Kernel, Gate]:
    """A real kernel whose worker stops at a gate before it compiles."""
    made = gate(folder, name)
    return pointwise(name, prelude=made.prelude()), made
