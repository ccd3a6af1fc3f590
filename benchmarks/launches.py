"""What a launch costs the program: nanoseconds on the host, for kernels with 0, 8 and 24 arguments.

    python -m benchmarks.launches [--launches 2000] [--rounds 15] [--json]

Half of the arguments are pointers. All kinds take turns, round by round, on the same kernel text; each figure is the
least of its rounds. Inductor's kernels have one argument more, their size. `of` is the kind that a launch is compared
with: Triton's `kernel[grid]` for what checks its arguments, Inductor's own launcher for what does not.
"""

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

COUNTS = (0, 8, 24)
_TEXT = """
import triton
import triton.language as tl

@triton.jit
def kernel({named}BLOCK: tl.constexpr):
    {body}
"""
_STORE = "tl.store(p0 + tl.arange(0, BLOCK), tl.load(p1 + tl.arange(0, BLOCK)) + n0)"
_INDUCTOR = """
import torch
import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.hints import DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={{'x': 128}}, filename=__file__,
    triton_meta={{'signature': {signature}, 'device': DeviceProperties.create(torch.device('cuda:0')),
                 'constants': {{}}, 'configs': [{{}}]}},
    inductor_meta={{'grid_type': 'Grid1D', 'kernel_name': 'kernel', 'mutated_arg_names': [],
                   'num_load': 1, 'num_store': 1, 'num_reduction': 0}},
    min_elem_per_thread=0,
)
@triton.jit
def kernel({named}xnumel, XBLOCK: tl.constexpr):
    BLOCK: tl.constexpr = XBLOCK
    {body}
"""
COMPARED = {
    "compilepool kernel[grid]": "triton kernel[grid]",
    "compilepool launcher": "inductor launcher",
}


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--launches", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="compilepool-bench-") as root:
        os.environ["COMPILEPOOL_TUNING_DIR"] = root
        results = {count: _measure(count, Path(root), options.launches, options.rounds) for count in COUNTS}
    sys.stdout.write(json.dumps(results) + "\n" if options.json else _table(results))


def _measure(count: int, root: Path, launches: int, rounds: int) -> dict[str, int]:
    import torch

    kinds = _kinds(count, root)
    best = dict.fromkeys(kinds, float("inf"))
    for _ in range(rounds):
        for kind, launch in kinds.items():
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(launches):
                launch()
            best[kind] = min(best[kind], (time.perf_counter() - began) / launches)
            torch.cuda.synchronize()
    return {kind: round(1e9 * taken) for kind, taken in best.items()}


def _kinds(count: int, root: Path) -> dict[str, Callable[[], Any]]:
    import torch
    import triton

    import compilepool

    names = [*(f"p{i}" for i in range(count // 2)), *(f"n{i}" for i in range(count // 2))]
    named, body = "".join(f"{name}, " for name in names), _STORE if count else "pass"
    kernel = _module(root / f"plain_{count}.py", _TEXT.format(named=named, body=body)).kernel
    values = [*(torch.zeros(256, device="cuda") for _ in range(count // 2)), *range(2, 2 + count // 2)]
    configs = [triton.Config({"BLOCK": 128})]
    theirs = triton.autotune(configs, key=[])(kernel)
    ours = compilepool.autotune(configs, key=[])(kernel)
    inductor, stream = _inductor(names, named, body), torch._C._cuda_getCurrentRawStream(0)
    for _ in range(2):
        ours[(1,)](*values)
    launcher = ours.launcher(*values, grid=(1,))
    inductor.run(*values, 128, stream=stream)
    its_launcher = inductor.launchers[0]
    return {
        "triton kernel[grid]": lambda: kernel[(1,)](*values, BLOCK=128),
        "triton.autotune kernel[grid]": lambda: theirs[(1,)](*values),
        "compilepool kernel[grid]": lambda: ours[(1,)](*values),
        "inductor run": lambda: inductor.run(*values, 128, stream=stream),
        "inductor launcher": lambda: its_launcher(*values, 128, stream=stream),
        "compilepool launcher": lambda: launcher(*values),
    }


def _inductor(names: list[str], named: str, body: str) -> Any:
    from torch._inductor.codecache import _load_triton_kernel_from_source

    signature = {name: "*fp32" if name.startswith("p") else "i32" for name in names}
    text = _INDUCTOR.format(named=named, body=body, signature={**signature, "xnumel": "i32", "XBLOCK": "constexpr"})
    autotuner = _load_triton_kernel_from_source("kernel", text)
    autotuner.precompile()
    return autotuner


def _module(path: Path, text: str) -> ModuleType:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _table(results: dict[int, dict[str, int]]) -> str:
    lines = [f"{'ns a launch':<30}" + "".join(f"{f'{count} arguments':>16}" for count in results)]
    lines += [
        f"{kind:<30}" + "".join(f"{results[count][kind]:>16}" for count in results) for kind in results[COUNTS[0]]
    ]
    for kind, of in COMPARED.items():
        ratios = "".join(f"{results[count][kind] / results[count][of]:>15.2f}x" for count in results)
        lines.append(f"{kind}, of {of}:".ljust(30) + ratios)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
