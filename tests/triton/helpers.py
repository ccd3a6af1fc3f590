"""A module that kernels reach into, with things in it that no kernel needs and no pickle takes."""

import threading

import torch
import triton
import triton.language as tl

LIMIT = tl.constexpr(3)
SHIFT = 5
unpicklable = threading.Lock()
Tensor = torch.Tensor


@triton.constexpr_function
def next_odd(value):
    return value + 1 - value % 2


@triton.jit
def twice(x):
    return x * 2 + LIMIT


@triton.jit(noinline=True)
def never_inlined(pointer, value):
    tl.store(pointer, value)
