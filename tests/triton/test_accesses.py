"""What a kernel reads and writes is found in its TTIR, through loops, branches and calls."""

from typing import Any

import pytest
import triton
import triton.language as tl
from triton.compiler.compiler import ASTSource

from compilepool.daemon.worker.accesses import Accessed, accessed, argument_names
from tests.handwritten import CASES
from tests.triton import helpers
from tests.triton.conftest import H100
from tests.triton.test_compiling import TARGETS, compilation


def found(kernel: Any, signature: dict[str, Any], constants: dict[Any, Any]) -> Accessed | None:
    ttir = triton.compile(ASTSource(kernel, signature, constants), target=H100).asm["ttir"]
    return accessed(ttir, argument_names(signature))


@triton.jit
def moves_on(source, target, other, index, n, again, BLOCK: tl.constexpr):  # noqa: N803
    if again:
        return
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    left, right = source + at, target + at
    for i in range(n):
        tl.store(right, tl.load(left) + i)
        left, right = left + n, right + n
    while n > 3:
        n = n - 1
        right += 1
        tl.atomic_max(right, n.to(tl.float32))
    tl.store(other + tl.load(index + at), 1.0)


@triton.jit
def chooses(left, right, third, which, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.arange(0, BLOCK)
    target = left + at
    if which > 2:
        target = right + at
    tl.store(tl.where(which > 0, target, target + 1), tl.load(third + at))


@triton.jit
def calls(target, source, BLOCK: tl.constexpr):  # noqa: N803
    helpers.never_inlined(target + 1, tl.sum(tl.load(source + tl.arange(0, BLOCK))))


@triton.jit
def describes(described, pointers, n, BLOCK: tl.constexpr):  # noqa: N803
    block = described.load([0, 0])
    target = tl.load(pointers).to(tl.pointer_type(tl.float16))
    tl.store(target + tl.arange(0, BLOCK), 1.0)
    described.store([n, 0], block)


@triton.jit
def inline(target, source, BLOCK: tl.constexpr, PURE: tl.constexpr):  # noqa: N803
    at = tl.arange(0, BLOCK)
    value = tl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [tl.load(source + at)], dtype=tl.int32, is_pure=PURE, pack=1
    )
    address = (source + at).to(tl.int64)
    more = tl.inline_asm_elementwise("mov.b64 $0, $1;", "=l,l", [address], dtype=tl.int64, is_pure=PURE, pack=1)
    tl.store(target + at, value + more.to(tl.int32))


@triton.jit
def unpacks(pair, target, BLOCK: tl.constexpr):  # noqa: N803
    tl.store(target + tl.arange(0, BLOCK), pair[0] + tl.load(pair[1] + tl.arange(0, BLOCK)))


@triton.jit
def renames(x, left, right, out, n, BLOCK: tl.constexpr):  # noqa: N803
    """Where branches meet, Triton calls an argument by a variable's name."""
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    target = left
    if n > 5:
        target = right
    tl.store(target + at, value)
    if n > 100:
        x = out
    tl.store(x + at, value)


@triton.jit
def computes(x, hidden, größe, BLOCK: tl.constexpr):  # noqa: N803
    """An address that comes in by way of an offset."""
    at = tl.arange(0, BLOCK)
    tl.store(x + (hidden.to(tl.int64) - x.to(tl.int64)) // 4 + at, 1.0)
    tl.store(größe + at, 2.0)


POINTERS = {"source": "*fp32", "target": "*fp32", "BLOCK": "constexpr"}


def test_writes_are_followed_to_arguments() -> None:
    told = {"other": "*fp32", "index": "*i32", "n": "i32", "again": "i32"}
    order = ("source", "target", "other", "index", "n", "again", "BLOCK")
    signature = {name: {**POINTERS, **told}[name] for name in order}
    assert found(moves_on, signature, {"BLOCK": 64}) == (["index", "source", "target"], ["other", "target"], False)
    three = {**dict.fromkeys(("left", "right", "third"), "*fp32"), "which": "i32", "BLOCK": "constexpr"}
    assert found(chooses, three, {"BLOCK": 64}) == (["third"], ["left", "right"], False)
    called = {"target": "*fp32", "source": "*fp32", "BLOCK": "constexpr"}
    assert found(calls, called, {"BLOCK": 64}) == (["source"], ["target"], False)


def test_names_are_those_of_arguments() -> None:
    four = {**dict.fromkeys(("x", "left", "right", "out"), "*fp32"), "n": "i32", "BLOCK": "constexpr"}
    assert found(renames, four, {"BLOCK": 64}) == (["x"], ["left", "out", "right", "x"], False)
    three = {**dict.fromkeys(("x", "hidden", "größe"), "*fp32"), "BLOCK": "constexpr"}
    assert found(computes, three, {"BLOCK": 64}) == ([], ["größe", "hidden", "x"], False)


def test_descriptors_tuples_and_addresses_from_memory() -> None:
    signature = {"described": "tensordesc<fp16[32,32]>", "pointers": "*i64", "n": "i32", "BLOCK": "constexpr"}
    assert found(describes, signature, {"BLOCK": 64}) == (["described", "pointers"], ["described"], True)
    pair = {"pair": ("i32", "*fp32"), "target": "*fp32", "BLOCK": "constexpr"}
    assert found(unpacks, pair, {(2,): 64}) == (["pair"], ["target"], False)


def test_what_is_not_known_counts_as_a_write() -> None:
    signature = {"target": "*i32", "source": "*i32", "BLOCK": "constexpr", "PURE": "constexpr"}
    pure = found(inline, signature, {"BLOCK": 64, "PURE": True})
    assert pure is not None and pure.writes == ["target"]
    impure = found(inline, signature, {"BLOCK": 64, "PURE": False})
    assert impure is not None and impure.writes == ["source", "target"]
    assert accessed("this is no TTIR", []) is None and accessed("tt.func", []) is None and accessed("", []) is None


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: f"{target.backend}:{target.arch}")
def test_of_every_kernel_and_target(target: Any) -> None:
    for case in CASES:
        kernel = compilation(case, target).make()
        known = accessed(kernel.asm["ttir"], argument_names(kernel.src.signature))
        assert known is not None and (known.writes, known.writes_elsewhere) == (case.writes, case.writes_elsewhere)
        assert accessed(kernel.asm["ttir"], ["one"]) is None, "names that are not its own"
