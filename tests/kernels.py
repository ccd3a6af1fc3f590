"""Kernels as people write them; `handwritten` says how they are tried."""

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
