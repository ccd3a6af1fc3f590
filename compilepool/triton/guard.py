"""Keeps what a kernel writes while it runs only to be measured: it runs on copies.

A copy has the strides of its tensor and the alignment of its address, since kernels are compiled for that. Where the
device has no room for a copy, the tensor's contents are kept in the host's memory, the kernel runs on the tensor, and
the contents are put back. Which arguments a kernel writes is found from its TTIR (`worker/accesses.py`).
"""

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from compilepool.daemon.worker.accesses import argument_names
from compilepool.daemon.worker.jit import facts_of
from compilepool.once import SayOnce
from compilepool.protocol.terms import Facts
from compilepool.triton.compiler import ANSWERED

log = logging.getLogger("compilepool")
_ALIGNMENT = 16
# Of what is free: a copy must leave room for the program's own next step.
_SHARE = 0.5

_say_unknown = SayOnce("tuning %s: what it writes can't be told, so every tensor is copied")
_say_elsewhere = SayOnce("tuning %s: it writes through addresses that it reads from memory, which can't be copied")


def facts(kernel: Any) -> Facts:
    """What is known of a compiled kernel: as its worker has found, or from its TTIR."""
    answered = getattr(kernel, ANSWERED, None)
    if answered is not None:
        return msgspec.json.decode(answered[1], type=Facts)
    return facts_of(kernel.asm.get("ttir", ""), argument_names(kernel.src.signature))


class Guard:
    """The arguments of a call, and copies of those that kernels write; `release` puts back what was kept elsewhere."""

    def __init__(self, arguments: dict[str, Any], name: str, room: Callable[[Any], int] | None = None) -> None:
        self._arguments = arguments
        self._name = name
        self._room = room or _free_bytes
        self._copies: dict[str, Any] = {}
        self._kept: list[tuple[Any, Any]] = []

    def for_kernel(self, kernel: Any) -> dict[str, Any]:
        """What to call it with."""
        known = facts(kernel)
        if known.writes is None:
            _say_unknown(self._name)
        elif known.writes_elsewhere:
            _say_elsewhere(self._name)
        written = known.writes if known.writes is not None else list(self._arguments)
        for name in written:
            if name not in self._copies:
                self._copies[name] = self._guarded(self._arguments.get(name))
        return {**self._arguments, **{name: self._copies[name] for name in written if name in self._arguments}}

    def release(self) -> None:
        """Put back what was kept in the host's memory, and give up the copies."""
        for tensor, kept in self._kept:
            _flat(tensor).copy_(kept)
        self._kept.clear()
        self._copies.clear()

    def _guarded(self, value: Any) -> Any:
        if isinstance(value, tuple):
            parts = [self._guarded(part) for part in value]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if dataclasses.is_dataclass(value) and hasattr(base := getattr(value, "base", None), "data_ptr"):
            # A descriptor of a tensor.
            return dataclasses.replace(value, base=self._guarded(base))  # type: ignore[type-var]
        if not hasattr(value, "data_ptr") or not hasattr(value, "as_strided"):
            return value
        if _extent(value) * value.element_size() > self._room(value) * _SHARE:
            self._kept.append((value, _flat(value).to("cpu", copy=True)))
            return value
        return copy_of(value)


def copy_of(tensor: Any) -> Any:
    """A copy with the same strides, and an address that is aligned as the tensor's is."""
    tensor = tensor.detach()
    extent, size = _extent(tensor), tensor.element_size()
    shift = (tensor.data_ptr() % _ALIGNMENT) // size
    made = tensor.new_empty(extent + shift)
    made[shift:].copy_(_flat(tensor))
    return made.as_strided(tensor.size(), tensor.stride(), shift)


def _flat(tensor: Any) -> Any:
    """The memory from its first element to its last."""
    return tensor.detach().as_strided((_extent(tensor),), (1,))


def _extent(tensor: Any) -> int:
    """Elements from the first to the last, those between included."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum(int(size - 1) * int(stride) for size, stride in zip(tensor.size(), tensor.stride(), strict=True))


def _free_bytes(tensor: Any) -> int:
    """On the tensor's device, with what torch has set aside."""
    import torch

    if tensor.device.type != "cuda":
        return 1 << 62
    with contextlib.suppress(RuntimeError):
        free, _ = torch.cuda.mem_get_info(tensor.device)
        aside = torch.cuda.memory_reserved(tensor.device) - torch.cuda.memory_allocated(tensor.device)
        return int(free + aside)
    return 0


@contextlib.contextmanager
def guarded(arguments: dict[str, Any], name: str) -> Iterator[Guard]:
    """A guard that is released at the end, whatever happens."""
    guard = Guard(arguments, name)
    try:
        yield guard
    finally:
        guard.release()
