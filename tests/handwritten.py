"""Kernels as people write them, each with configs to choose from and the torch call that it must agree with.

They are compiled without a GPU (`signature`) and run with one (`arguments`).
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out + at, tl.load(x + at, mask) + tl.load(y + at, mask), mask)


@triton.jit
def softmax(x, out, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * stride + at, at < columns, other=-float("inf")).to(tl.float32)
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * stride + at, powers / tl.sum(powers, 0), at < columns)


@triton.jit
def matmul(
    a, b, c, M, N, K, a_row, a_col, b_row, b_col, c_row, c_col,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    rows, columns = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    in_group = GROUP_M * columns
    first = (program // in_group) * GROUP_M
    height = min(rows - first, GROUP_M)
    row = first + (program % in_group) % height
    column = (program % in_group) // height
    at_m = row * BLOCK_M + tl.arange(0, BLOCK_M)
    at_n = column * BLOCK_N + tl.arange(0, BLOCK_N)
    at_k = tl.arange(0, BLOCK_K)
    a_at = a + (at_m % M)[:, None] * a_row + at_k[None, :] * a_col
    b_at = b + at_k[:, None] * b_row + (at_n % N)[None, :] * b_col
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        left = tl.load(a_at, at_k[None, :] < K - k * BLOCK_K, other=0.0)
        right = tl.load(b_at, at_k[:, None] < K - k * BLOCK_K, other=0.0)
        total = tl.dot(left, right, total)
        a_at += BLOCK_K * a_col
        b_at += BLOCK_K * b_row
    inside = (at_m[:, None] < M) & (at_n[None, :] < N)
    tl.store(c + at_m[:, None] * c_row + at_n[None, :] * c_col, total.to(c.dtype.element_ty), inside)


@triton.jit
def split_k(
    a, b, c, M, N, K, a_row, a_col, b_row, b_col, c_row, c_col,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    """c += a @ b, each program a part of K."""
    program, part = tl.program_id(0), tl.program_id(1)
    columns = tl.cdiv(N, BLOCK_N)
    at_m = (program // columns) * BLOCK_M + tl.arange(0, BLOCK_M)
    at_n = (program % columns) * BLOCK_N + tl.arange(0, BLOCK_N)
    at_k = part * BLOCK_K + tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K * SPLIT_K)):
        here = at_k + k * BLOCK_K * SPLIT_K
        left = tl.load(a + (at_m % M)[:, None] * a_row + here[None, :] * a_col, here[None, :] < K, other=0.0)
        right = tl.load(b + here[:, None] * b_row + (at_n % N)[None, :] * b_col, here[:, None] < K, other=0.0)
        total = tl.dot(left, right, total)
    inside = (at_m[:, None] < M) & (at_n[None, :] < N)
    tl.atomic_add(c + at_m[:, None] * c_row + at_n[None, :] * c_col, total, inside, sem="relaxed")


@triton.jit
def _moments(values, mask, count):
    mean = tl.sum(tl.where(mask, values, 0.0), 0) / count
    centred = tl.where(mask, values - mean, 0.0)
    return mean, tl.sum(centred * centred, 0) / count


@triton.jit
def layer_norm(x, weight, bias, out, means, scales, stride, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    mask = at < columns
    values = tl.load(x + row * stride + at, mask, other=0.0).to(tl.float32)
    mean, variance = _moments(values, mask, columns)
    scale = 1 / tl.sqrt(variance + eps)
    result = (values - mean) * scale * tl.load(weight + at, mask) + tl.load(bias + at, mask)
    tl.store(out + row * stride + at, result, mask)
    tl.store(means + row, mean)
    tl.store(scales + row, scale)


@triton.jit
def layer_norm_backward(
    grad, x, weight, means, scales, dx, dweight, dbias, stride, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """dx is stored; what rows contribute to dweight and dbias is added to them."""
    at = tl.arange(0, BLOCK)
    mask = at < columns
    gain = tl.load(weight + at, mask, other=0.0).to(tl.float32)
    dgain = tl.zeros((BLOCK,), tl.float32)
    dshift = tl.zeros((BLOCK,), tl.float32)
    for i in range(ROWS):
        row = (tl.program_id(0) * ROWS + i).to(tl.int64)
        here = mask & (row < rows)
        values = tl.load(x + row * stride + at, here, other=0.0).to(tl.float32)
        upstream = tl.load(grad + row * stride + at, here, other=0.0).to(tl.float32)
        scale = tl.load(scales + row, row < rows, other=0.0)
        normal = tl.where(here, (values - tl.load(means + row, row < rows, other=0.0)) * scale, 0.0)
        scaled = upstream * gain
        c1 = tl.sum(normal * scaled, 0) / columns
        c2 = tl.sum(scaled, 0) / columns
        tl.store(dx + row * stride + at, (scaled - (normal * c1 + c2)) * scale, here)
        dgain += upstream * normal
        dshift += upstream
    tl.atomic_add(dweight + at, dgain, mask)
    tl.atomic_add(dbias + at, dshift, mask)


@triton.jit
def attention(
    q, k, v, out, scale, stride_h, stride_m, M, N,
    HEAD: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Flash attention, forward: heads of [M, HEAD] against [N, HEAD], softmax on the way (Dao et al., 2205.14135)."""
    base = tl.program_id(1).to(tl.int64) * stride_h
    at_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    at_n = tl.arange(0, BLOCK_N)
    at_d = tl.arange(0, HEAD)
    query = tl.load(q + base + at_m[:, None] * stride_m + at_d[None, :], at_m[:, None] < M, other=0.0)
    highest = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    result = tl.zeros((BLOCK_M, HEAD), tl.float32)
    end = min((tl.program_id(0) + 1) * BLOCK_M, N) if CAUSAL else N
    for start in range(0, end, BLOCK_N):
        here = start + at_n
        keys = tl.load(k + base + here[None, :] * stride_m + at_d[:, None], here[None, :] < N, other=0.0)
        scores = tl.dot(query, keys) * (scale * 1.44269504)
        allowed = here[None, :] < N
        if CAUSAL:
            allowed = allowed & (at_m[:, None] >= here[None, :])
        scores = tl.where(allowed, scores, -1.0e30)
        now = tl.maximum(highest, tl.max(scores, 1))
        powers = tl.exp2(scores - now[:, None])
        rescale = tl.exp2(highest - now)
        total = total * rescale + tl.sum(powers, 1)
        values = tl.load(v + base + here[:, None] * stride_m + at_d[None, :], here[:, None] < N, other=0.0)
        result = tl.dot(powers.to(values.dtype), values, result * rescale[:, None])
        highest = now
    result = result / total[:, None]
    tl.store(out + base + at_m[:, None] * stride_m + at_d[None, :], result.to(out.dtype.element_ty), at_m[:, None] < M)


@triton.jit
def grouped_matmul(
    a_s, b_s, c_s, sizes, groups, PROGRAMS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """c = a @ b for each group, all row-major fp16: addresses are read from memory, sizes are (M, N, K)."""
    tile = tl.program_id(0)
    before = 0
    for group in range(groups):
        M = tl.load(sizes + 3 * group)
        N = tl.load(sizes + 3 * group + 1)
        K = tl.load(sizes + 3 * group + 2)
        columns = tl.cdiv(N, BLOCK_N)
        tiles = tl.cdiv(M, BLOCK_M) * columns
        while tile >= before and tile < before + tiles:
            a = tl.load(a_s + group).to(tl.pointer_type(tl.float16))
            b = tl.load(b_s + group).to(tl.pointer_type(tl.float16))
            c = tl.load(c_s + group).to(tl.pointer_type(tl.float16))
            at_m = (tile - before) // columns * BLOCK_M + tl.arange(0, BLOCK_M)
            at_n = (tile - before) % columns * BLOCK_N + tl.arange(0, BLOCK_N)
            at_k = tl.arange(0, BLOCK_K)
            total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            for k in range(tl.cdiv(K, BLOCK_K)):
                here = at_k + k * BLOCK_K
                left = tl.load(
                    a + at_m[:, None] * K + here[None, :], (at_m[:, None] < M) & (here[None, :] < K), other=0.0
                )
                right = tl.load(
                    b + here[:, None] * N + at_n[None, :], (here[:, None] < K) & (at_n[None, :] < N), other=0.0
                )
                total = tl.dot(left, right, total)
            tl.store(
                c + at_m[:, None] * N + at_n[None, :],
                total.to(tl.float16),
                (at_m[:, None] < M) & (at_n[None, :] < N),
            )
            tile += PROGRAMS
        before += tiles


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
