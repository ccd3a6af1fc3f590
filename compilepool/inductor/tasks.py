"""What torch submits to its compile workers, and what that is to the daemon."""

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import _load_triton_kernel_from_source
from torch._inductor.runtime.compile_tasks import _worker_compile_triton

from compilepool.canonical import device_of
from compilepool.future import CompileFuture
from compilepool.kernel import Wanted, wanted
from compilepool.protocol import messages as m
from compilepool.protocol.environment import compile_environment

Finish = Callable[[m.Compiled, Sequence[bytes]], Any]
_DEVICES = ("cuda", "hip")


@dataclass(slots=True)
class Task:
    """One submission.

    job: what torch submitted, for torch's own pool
    make, segments: the daemon's request; `kernel`: what it is about, if it is about one
    finish: makes the result of the answer, in the thread that wants it
    """

    name: str
    job: Callable[[], Any]
    make: Callable[[int], m.AnyMessage]
    segments: tuple[bytes, ...]
    finish: Finish
    kernel: Wanted | None = None
    future: CompileFuture = field(init=False)

    def __post_init__(self) -> None:
        self.future = CompileFuture(self.name)


def task_for(function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> Task | None:
    """What to ask the daemon for; None: it is for torch's own pool (a device that the pool does not compile for)."""
    job = functools.partial(function, *arguments, **named)
    if function is AsyncCompile._get_ready:
        return Task("ready", job, m.Prepare, (), lambda _answer, _segments: "ready")
    if function is _worker_compile_triton:
        return _kernel_task(job, *arguments)
    call = m.Call(getattr(function, "__qualname__", repr(function)), compile_environment(os.environ))
    pickled = cloudpickle.dumps(job)
    return Task(call.name, job, lambda number: m.Execute(number, call), (pickled,), _unpickle)


def _kernel_task(
    job: Callable[[], Any], load: Any, environment: dict[str, str], settings: dict[str, Any]
) -> Task | None:
    if getattr(load, "func", None) is not _load_triton_kernel_from_source:
        return None
    name, source = load.args
    device = device_of(source)
    if device is None or device[0] not in _DEVICES:
        return None
    kernel = wanted(name, source, environ={**os.environ, **environment}, settings=settings)
    make = functools.partial(kernel.message, priority="foreground")
    return Task(name, job, make, (kernel.canonical,), functools.partial(_unpack, kernel), kernel)


def _unpack(kernel: Wanted, answer: m.Compiled, segments: Sequence[bytes]) -> tuple[Any, int]:
    from compilepool.reload import unpack

    return unpack(kernel, answer.contents, segments), int(answer.contents.cost.wall * 1e6)


def _unpickle(_answer: m.Compiled, segments: Sequence[bytes]) -> Any:
    return cloudpickle.loads(segments[0])
