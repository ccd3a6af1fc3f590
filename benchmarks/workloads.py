"""Compiles and runs one workload after the other in this process, on its GPU; one line of JSON each.

    python -m benchmarks.workloads FOLDER [NAME...]

FOLDER gets each workload's outputs, for the other side to be compared with. Whether the pool is used is the
environment's business. Printed: seconds of the first call (and backward), in which everything is compiled, and how many
of them this process waited for its compile workers; how often it called `triton.compile` itself, and how often that
compiled something rather than read a cache.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch._dynamo.utils import compilation_time_metrics
from torch._inductor import config

from benchmarks.counting import COUNT_VARIABLE, counted
from benchmarks.models import Llama, ViT, resnet50


class Counts:
    """What this process calls, compiles and waits for."""

    def __init__(self) -> None:
        self.calls = 0
        compile_kernel = triton.compile

        def noted(source: Any, *arguments: Any, **options: Any) -> Any:
            self.calls += 1
            before = self.now()["compiled"]
            made = compile_kernel(source, *arguments, **options)
            if self.now()["compiled"] > before:
                print(f"compiled in the program: {source.name}", file=sys.stderr)
            return made

        triton.compile = noted

    def now(self) -> dict[str, float]:
        """Calls of `triton.compile`, units compiled by them, and seconds of waiting for compile workers."""
        compiled = counted(Path(os.environ[COUNT_VARIABLE])).count(os.getpid())
        return {
            "calls": self.calls,
            "compiled": compiled,
            "waited": sum(compilation_time_metrics.get("async_compile.wait", ())),
        }


def train(model: nn.Module, inputs: Tensor) -> tuple[Tensor, ...]:
    """Loss, and the gradients of the first and last parameter."""
    model = model.cuda()
    compiled = torch.compile(model)
    loss = compiled(inputs).float().square().mean()
    loss.backward()
    parameters = [p for p in model.parameters() if p.grad is not None]
    return loss.detach(), *(p.grad for p in (parameters[0], parameters[-1]) if p.grad is not None)


def resnet() -> Sequence[Tensor]:
    """ResNet-50, forward and backward."""
    return train(resnet50(), torch.randn(8, 3, 224, 224, device="cuda"))


def llama() -> Sequence[Tensor]:
    """A Llama of four layers, forward and backward."""
    return train(Llama(), torch.randint(0, 8_000, (4, 512), device="cuda"))


def vit() -> Sequence[Tensor]:
    """A vision transformer, forward and backward."""
    return train(ViT(), torch.randn(8, 3, 224, 224, device="cuda"))


def max_autotune() -> Sequence[Tensor]:
    """A product whose choices are Triton templates, benchmarked against each other."""
    a, b = (torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    with config.patch(max_autotune=True, max_autotune_gemm_backends="TRITON"):
        return [torch.compile(lambda x, y: torch.relu(x @ y))(a, b)]


def combo_kernels() -> Sequence[Tensor]:
    """Independent pointwise operations and reductions, in one kernel."""
    xs = [torch.randn(100 * n, 64, device="cuda") for n in range(1, 6)]
    with config.patch(combo_kernels=True, benchmark_combo_kernel=False):
        out: Sequence[Tensor] = torch.compile(lambda *ts: [t.sin() * 2 + t.sum(1, keepdim=True) for t in ts])(*xs)
        return out


def adamw_foreach() -> Sequence[Tensor]:
    """A step of AdamW over a list of parameters."""
    parameters = [nn.Parameter(torch.randn(64 * n, 128, device="cuda")) for n in range(1, 9)]
    optimizer = torch.optim.AdamW(parameters, lr=torch.tensor(1e-3, device="cuda"), foreach=True, capturable=True)
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    torch.compile(optimizer.step)()
    return [parameter.detach() for parameter in parameters]


def scan_and_sort() -> Sequence[Tensor]:
    """Cumulative sums and sorts."""
    x = torch.randn(256, 512, device="cuda")
    out: Sequence[Tensor] = torch.compile(lambda t: (t.cumsum(1), t.sort(1).values, t.cummax(1).values))(x)
    return out


def dynamic_shapes() -> Sequence[Tensor]:
    """One function for every length."""
    function = torch.compile(lambda t: torch.softmax(t * 2, -1).cumsum(0) + t.mean(), dynamic=True)
    return [function(torch.randn(n, 320, device="cuda")) for n in (100, 333, 1024)]


@triton.jit  # type: ignore[untyped-decorator]
def _scale(source, target, count, factor, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, at < count) * factor, at < count)


@triton.autotune(  # type: ignore[untyped-decorator]
    configs=[triton.Config({"BLOCK": size}) for size in (128, 256, 1024)], key=["count"]
)
@triton.jit  # type: ignore[untyped-decorator]
def _add(source, target, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, at < count) + 1, at < count)


def user_defined() -> Sequence[Tensor]:
    """Triton kernels that a program brings along, one of them with configs of its own."""

    def function(x: Tensor) -> Tensor:
        scaled, added = torch.empty_like(x), torch.empty_like(x)
        _scale[(triton.cdiv(x.numel(), 256),)](x, scaled, x.numel(), 3.0, BLOCK=256)
        _add[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](scaled.sin(), added, x.numel())
        return added.cos()

    return [torch.compile(function, fullgraph=True)(torch.randn(100_000, device="cuda"))]


WORKLOADS: dict[str, Callable[[], Sequence[Tensor]]] = {
    "resnet50 training": resnet,
    "Llama training": llama,
    "ViT training": vit,
    "max-autotune matmul": max_autotune,
    "combo kernels": combo_kernels,
    "AdamW foreach": adamw_foreach,
    "cumsum, sort": scan_and_sort,
    "dynamic shapes": dynamic_shapes,
    "user-defined kernels": user_defined,
}


def main() -> None:
    """See the module's docstring."""
    folder, *names = sys.argv[1:]
    counts = Counts()
    torch.empty(1, device="cuda")
    for name in names or WORKLOADS:
        torch.manual_seed(0)
        torch.compiler.reset()
        before, started = counts.now(), time.monotonic()
        outputs = WORKLOADS[name]()
        torch.cuda.synchronize()
        told: dict[str, Any] = {"name": name, "seconds": time.monotonic() - started}
        told |= {what: after - before[what] for what, after in counts.now().items()}
        torch.save([output.detach().cpu() for output in outputs], Path(folder) / f"{name}.pt")
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
