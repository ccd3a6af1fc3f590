"""A function arrives with all that it uses, and goes by the key that it had, where none of its modules are."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.compiler.compiler import ASTSource

from compilepool.daemon.worker import parcel
from compilepool.daemon.worker.content import content_key
from compilepool.daemon.worker.parcel import NotPortable, Specialization, pack, seal, unpack
from tests.handwritten import CASES
from tests.triton import helpers, helpers as nested

WIDTH = tl.constexpr(7)
secret = helpers.unpicklable

_ELSEWHERE = """
import sys
from compilepool.daemon.worker.parcel import unseal
source, options = unseal(sys.stdin.buffer.read())
assert not any(name.split(".")[0] in ("torch", "tests") for name in sys.modules), "it needs the program's modules"
print(source.hash())
"""


def key_elsewhere(source: ASTSource) -> str:
    """Triton's key of a source, once it has arrived in another process."""
    told = Specialization(source.signature, source.constants, source.attrs, {"num_warps": 4})
    done = subprocess.run(
        [sys.executable, "-P", "-c", _ELSEWHERE],
        input=seal(pack(source.fn), told),
        capture_output=True,
        check=False,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


@triton.jit
def inner(x, width: tl.constexpr = WIDTH):
    return helpers.twice(x) + width + helpers.next_odd(4)


@triton.jit
def kernel(a: torch.Tensor, out: "tl.pointer_type", n, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    nested.never_inlined(out, tl.sum(inner(tl.load(a + at, at < n))))


@triton.jit
def recursive(out, n: tl.constexpr):
    if n > 0:
        recursive(out, n - 1)
    else:
        tl.store(out, 1.0)


@triton.jit
def smallest(out):
    tl.store(out, torch.finfo(torch.float32).tiny)


@tl.constexpr
def shifted(value):
    return value + helpers.SHIFT


@triton.jit
def shifting(out, n: tl.constexpr):
    tl.store(out, shifted(n))


def closing_over(width: int) -> triton.JITFunction:
    @triton.jit
    def closed(out, BLOCK: tl.constexpr):  # noqa: N803
        tl.store(out + tl.arange(0, BLOCK), width)

    width = tl.constexpr(width)
    return closed


def test_a_function_arrives_with_its_helpers_constants_and_closure() -> None:
    source = ASTSource(kernel, {"a": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}, {"BLOCK": 64})
    assert key_elsewhere(source) == source.hash()
    for value in (3, 4):
        closed = ASTSource(closing_over(value), {"out": "*fp32", "BLOCK": "constexpr"}, {"BLOCK": 64})
        assert key_elsewhere(closed) == closed.hash()
    itself = ASTSource(recursive, {"out": "*fp32", "n": "constexpr"}, {"n": 2})
    assert key_elsewhere(itself) == itself.hash()
    by_function = ASTSource(shifting, {"out": "*fp32", "n": "constexpr"}, {"n": 2})
    assert key_elsewhere(by_function) == by_function.hash()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_kernel_arrives(case) -> None:
    constants = {**case.fixed, **case.configs[0].kwargs}
    signature = {name: case.signature.get(name, "constexpr") for name in case.kernel.arg_names}
    source = ASTSource(case.kernel, signature, constants)
    assert key_elsewhere(source) == source.hash()


def test_it_does_not_matter_which_function_was_hashed_first() -> None:
    """To Triton it does: its keys are not the same then."""
    source = ASTSource(kernel, {"a": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}, {"BLOCK": 64})
    tritons, contents = [], []
    for first in (kernel, helpers.twice):
        for function in (kernel, inner, helpers.twice, helpers.never_inlined):
            function.hash, function.used_global_vals = None, {}
        assert first.cache_key
        tritons.append(kernel.cache_key)
        contents.append(content_key(kernel))
        assert key_elsewhere(source) == source.hash()
    assert tritons[0] != tritons[1]
    assert contents[0] == contents[1]


def test_a_function_that_lost_something_on_the_way_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = parcel._plain

    def without_globals(*told: Any) -> Any:
        make, arguments, (attributes, slots), *rest = plain(*told)
        return make, arguments, (attributes, {**slots, "__globals__": {}}), *rest

    monkeypatch.setattr(parcel, "_plain", without_globals)
    with pytest.raises(NotPortable, match="is missing"):
        unpack(pack(helpers.twice))


def test_a_function_that_calls_torch_is_not_sent_to_where_there_is_none() -> None:
    with pytest.raises(NotPortable, match="torch.finfo"):
        pack(smallest)


def test_what_does_not_pickle_stays_behind_unless_it_is_used() -> None:
    kernel.pre_run_hooks.append(lambda *_, **__: None)
    kernel.launch_metadata = secret
    try:
        assert b"launch_metadata" not in pack(kernel)
    finally:
        kernel.pre_run_hooks.clear()
        kernel.launch_metadata = None
    with pytest.raises(NotPortable, match="RLock|lock"):
        seal(b"", Specialization({}, {(0,): secret}, {}, {}))
