"""Kernels as people write them, each with configs to choose from and the torch call that it must agree with.

They are compiled without a GPU (`signature`) and run with one (`arguments`).
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import triton

from tests.kernels import (
    add as add,
    attention as attention,
    grouped_matmul,
    layer_norm,
    layer_norm_backward,
    matmul as matmul,
    softmax as softmax,
    split_k,
)

Arguments = tuple[list[Any], Callable[[Mapping[str, Any]], tuple[int, ...]], Callable[[], list[tuple[Any, Any]]]]


@dataclass(frozen=True)
class Case:
    """A kernel with configs, and how to try it.

    signature: types of its arguments, and values of those that are constants
    make: given torch, its arguments, its grid and what to compare (got, expected) after a call
    fixed: constants that no config sets
    """

    kernel: Any
    configs: list[triton.Config]
    key: list[str]
    signature: dict[str, str]
    writes: list[str]
    make: Callable[[Any], Arguments]
    fixed: dict[str, Any] = field(default_factory=dict)
    reset_to_zero: Sequence[str] = ()
    writes_elsewhere: bool = False
    tolerance: float = 2e-2

    @property
    def name(self) -> str:
        return str(self.kernel.__name__)


def _configs(blocks: Mapping[str, Sequence[int]], warps: Sequence[int], stages: Sequence[int]) -> list[triton.Config]:
    return [
        triton.Config(dict(zip(blocks, sizes, strict=True)), num_warps=warp, num_stages=stage)
        for *sizes, warp, stage in itertools.product(*blocks.values(), warps, stages)
    ]


def _tiles(**more: Sequence[int]) -> list[triton.Config]:
    blocks = {"BLOCK_M": (64, 128), "BLOCK_N": (64, 128), "BLOCK_K": (32, 64), **more}
    return _configs(blocks, (4, 8), (2, 3, 4))


def matmul_configs(count: int) -> list[triton.Config]:
    """The first so many of 64: tiles of different shapes beside each other."""
    blocks = {"BLOCK_M": (128, 64), "BLOCK_N": (128, 64), "BLOCK_K": (32, 64), "GROUP_M": (8, 4)}
    return _configs(blocks, (4, 8), (3, 4))[:count]


def _make_add(torch: Any) -> Arguments:
    n = 4_000_003
    x, y = torch.randn(n, device="cuda"), torch.randn(n, device="cuda")
    out = torch.empty_like(x)
    return [x, y, out, n], lambda meta: (triton.cdiv(n, meta["BLOCK"]),), lambda: [(out, x + y)]


def _make_softmax(torch: Any) -> Arguments:
    x = torch.randn(4096, 1000, device="cuda")
    out = torch.empty_like(x)
    return [x, out, x.stride(0), 1000, 1024], lambda _: (4096,), lambda: [(out, torch.softmax(x, -1))]


def _make_matmul(torch: Any, m: int = 1024, n: int = 1000, k: int = 512) -> Arguments:
    a = torch.randn(m, k, device="cuda", dtype=torch.float16)
    b = torch.randn(k, n, device="cuda", dtype=torch.float16)
    c = torch.empty(m, n, device="cuda", dtype=torch.float16)

    def grid(meta: Mapping[str, Any]) -> tuple[int, ...]:
        return (triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),)

    return [a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride()], grid, lambda: [(c, a @ b)]


def _make_split_k(torch: Any) -> Arguments:
    arguments, grid, _ = _make_matmul(torch, 128, 256, 8192)
    c = arguments[2] = torch.zeros(128, 256, device="cuda")
    a, b = arguments[:2]
    return arguments, lambda meta: (*grid(meta), meta["SPLIT_K"]), lambda: [(c, a.float() @ b.float())]


def _make_layer_norm(torch: Any) -> Arguments:
    rows, columns = 2048, 1000
    x = torch.randn(rows, columns, device="cuda")
    weight, bias = torch.randn(columns, device="cuda"), torch.randn(columns, device="cuda")
    out, means, scales = torch.empty_like(x), torch.empty(rows, device="cuda"), torch.empty(rows, device="cuda")

    def compared() -> list[tuple[Any, Any]]:
        return [(out, torch.nn.functional.layer_norm(x, (columns,), weight, bias, 1e-5)), (means, x.mean(1))]

    return [x, weight, bias, out, means, scales, x.stride(0), columns, 1e-5, 1024], lambda _: (rows,), compared


def _make_layer_norm_backward(torch: Any) -> Arguments:
    rows, columns = 2048, 1000
    x = torch.randn(rows, columns, device="cuda", requires_grad=True)
    weight = torch.randn(columns, device="cuda", requires_grad=True)
    bias = torch.randn(columns, device="cuda", requires_grad=True)
    grad = torch.randn(rows, columns, device="cuda")
    torch.nn.functional.layer_norm(x, (columns,), weight, bias, 1e-5).backward(grad)
    means, scales = x.detach().mean(1), (x.detach().var(1, unbiased=False) + 1e-5).rsqrt()
    dx, dweight, dbias = torch.empty_like(x), torch.zeros_like(weight), torch.zeros_like(bias)
    arguments = [grad, x.detach(), weight.detach(), means, scales, dx.detach(), dweight.detach(), dbias.detach()]

    def compared() -> list[tuple[Any, Any]]:
        return [(dx, x.grad), (dweight, weight.grad), (dbias, bias.grad)]

    def grid(meta: Mapping[str, Any]) -> tuple[int, ...]:
        return (triton.cdiv(rows, meta["ROWS"]),)

    return [*arguments, x.stride(0), rows, columns], grid, compared


def _make_attention(torch: Any) -> Arguments:
    heads, length, size = 8, 1024, 64
    q, k, v = (torch.randn(1, heads, length, size, device="cuda", dtype=torch.float16) for _ in range(3))
    out = torch.empty_like(q)

    def grid(meta: Mapping[str, Any]) -> tuple[int, ...]:
        return (triton.cdiv(length, meta["BLOCK_M"]), heads)

    def compared() -> list[tuple[Any, Any]]:
        return [(out, torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))]

    return [q, k, v, out, size**-0.5, q.stride(1), q.stride(2), length, length, size, True], grid, compared


def _make_grouped(torch: Any) -> Arguments:
    shapes = [(256, 512, 128), (100, 256, 512), (513, 128, 256)]
    pairs = [
        (
            torch.randn(m, k, device="cuda", dtype=torch.float16),
            torch.randn(k, n, device="cuda", dtype=torch.float16),
        )
        for m, n, k in shapes
    ]
    results = [torch.empty(m, n, device="cuda", dtype=torch.float16) for m, n, _ in shapes]

    def addresses(tensors: list[Any]) -> Any:
        return torch.tensor([tensor.data_ptr() for tensor in tensors], device="cuda", dtype=torch.int64)

    sizes = torch.tensor(shapes, device="cuda", dtype=torch.int32).flatten()
    all_a, all_b, all_c = (addresses(part) for part in ([a for a, _ in pairs], [b for _, b in pairs], results))

    def compared() -> list[tuple[Any, Any]]:
        return [(c, a @ b) for c, (a, b) in zip(results, pairs, strict=True)]

    return [all_a, all_b, all_c, sizes, len(shapes), 64], lambda _: (64,), compared


_MATRICES = {
    "a": "*fp16", "b": "*fp16", "c": "*fp16", **dict.fromkeys(("M", "N", "K"), "i32"),
    **dict.fromkeys(("a_row", "a_col", "b_row", "b_col", "c_row", "c_col"), "i32"),
}  # fmt: skip

CASES = [
    Case(
        add,
        _configs({"BLOCK": (256, 512, 1024, 2048)}, (2, 4, 8), (1,)),
        ["n"],
        {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32"},
        ["out"],
        _make_add,
    ),
    Case(
        softmax,
        _configs({}, (1, 2, 4, 8, 16), (1, 2)),
        ["columns"],
        {"x": "*fp32", "out": "*fp32", "stride": "i32", "columns": "i32"},
        ["out"],
        _make_softmax,
        fixed={"BLOCK": 1024},
    ),
    Case(matmul, matmul_configs(24), ["M", "N", "K"], _MATRICES, ["c"], _make_matmul),
    Case(
        split_k,
        _tiles(SPLIT_K=(4, 8))[::4],
        ["M", "N", "K"],
        {**_MATRICES, "c": "*fp32"},
        ["c"],
        _make_split_k,
        reset_to_zero=["c"],
        tolerance=0.5,
    ),
    Case(
        layer_norm,
        _configs({}, (1, 2, 4, 8, 16), (1,)),
        ["columns"],
        {
            **dict.fromkeys(("x", "weight", "bias", "out", "means", "scales"), "*fp32"),
            "stride": "i32",
            "columns": "i32",
            "eps": "fp32",
        },
        ["means", "out", "scales"],
        _make_layer_norm,
        fixed={"BLOCK": 1024},
    ),
    Case(
        layer_norm_backward,
        _configs({"ROWS": (1, 4, 16), "BLOCK": (1024,)}, (4, 8), (1, 2)),
        ["rows", "columns"],
        {
            **dict.fromkeys(("grad", "x", "weight", "means", "scales", "dx", "dweight", "dbias"), "*fp32"),
            **dict.fromkeys(("stride", "rows", "columns"), "i32"),
        },
        ["dbias", "dweight", "dx"],
        _make_layer_norm_backward,
        reset_to_zero=["dweight", "dbias"],
        tolerance=5e-2,
    ),
    Case(
        attention,
        _configs({"BLOCK_M": (64, 128), "BLOCK_N": (32, 64)}, (4, 8), (2, 3)),
        ["M", "N"],
        {
            **dict.fromkeys(("q", "k", "v", "out"), "*fp16"),
            "scale": "fp32",
            **dict.fromkeys(("stride_h", "stride_m", "M", "N"), "i32"),
        },
        ["out"],
        _make_attention,
        fixed={"HEAD": 64, "CAUSAL": True},
    ),
    Case(
        grouped_matmul,
        _configs({"BLOCK_M": (64, 128), "BLOCK_N": (64, 128), "BLOCK_K": (32,)}, (4,), (2, 3)),
        ["groups"],
        {"a_s": "*i64", "b_s": "*i64", "c_s": "*i64", "sizes": "*i32", "groups": "i32"},
        [],
        _make_grouped,
        fixed={"PROGRAMS": 64},
        writes_elsewhere=True,
    ),
]
