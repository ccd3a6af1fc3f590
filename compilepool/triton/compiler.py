"""Has kernels compiled by the pool, and makes of its answers what Triton would have made itself.

    submit --> prepare (a thread of its own: keys and pickles) --> daemon --> answer
                  |  in this process's Triton cache, or only this process can make it      |
                  '------------------> Triton's own compile <-- files into Triton's cache -'

What the pool answers goes into Triton's cache directory, and Triton's own `compile` finds it there: so the kernel is
one of Triton's, whatever the version. It is made by whoever asks for the result. What does not compile is compiled here
once more: Triton's own error comes out, and programs catch what they have always caught.
"""

import functools
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from triton.runtime.cache import get_cache_manager

from compilepool.client import Pool, no_toolchain, say_once
from compilepool.daemon.worker.parcel import NotPortable
from compilepool.future import CompileFuture
from compilepool.options import Options
from compilepool.protocol import messages as m
from compilepool.protocol.contents import DamagedContents, verify
from compilepool.protocol.errors import CompileError, CompilePoolError, PoolUnavailable
from compilepool.protocol.rendezvous import default_socket
from compilepool.triton.compilation import Compilation

log = logging.getLogger("compilepool")

# Attribute of a compiled kernel: what the pool said of it.
ANSWERED = "_compilepool_unit"


class Compiler:
    """See the module's docstring; without a pool of its own, that of this host's daemon, started if need be."""

    def __init__(self, pool: Pool | None = None) -> None:
        self.pool = pool or Pool(Options(default_socket(os.environ, os.getuid()), with_torch=False))
        self._thread: tuple[int, ThreadPoolExecutor] | None = None

    def __repr__(self) -> str:
        return f"<Compiler [{self.pool!r}]>"

    def submit(self, wanted: Compilation, priority: m.Priority = "foreground") -> CompileFuture:
        """Have it compiled; the future's result is a Triton `CompiledKernel`. Never waits."""
        future = CompileFuture(wanted.name)
        self._preparing.submit(self._start, wanted, future, priority)
        return future

    def compile(self, wanted: Compilation) -> Any:
        """The compiled kernel, whoever makes it."""
        future = CompileFuture(wanted.name)
        self._start(wanted, future, "foreground")
        return future.result()

    def prepare(self) -> None:
        """Have a forkserver before the first kernel is asked for; does not wait for it."""
        future = CompileFuture("prepare")
        self._preparing.submit(self.pool.request, m.Prepare, (), lambda *_: future.arrived(lambda: None), future)

    def later(self, name: str, ask: Callable[[], CompileFuture]) -> CompileFuture:
        """A future for what `ask` gives, which is called in the thread that prepares: it may take a while."""
        whole = CompileFuture(name)

        def run() -> None:
            try:
                inner = ask()
            except Exception as exc:  # noqa: BLE001 - it is for whoever wants the result
                whole.arrived(functools.partial(_raise, exc))
                return
            whole.follow(inner)

        self._preparing.submit(run)
        return whole

    def close(self) -> None:
        """Disconnect; what was not answered is no longer wanted."""
        self._preparing.shutdown(cancel_futures=True)
        self.pool.close()

    @property
    def _preparing(self) -> ThreadPoolExecutor:
        """The thread that prepares, in this process: a fork has none."""
        if self._thread is None or self._thread[0] != os.getpid():
            self._thread = (os.getpid(), ThreadPoolExecutor(1, thread_name_prefix="compilepool-prepare"))
        return self._thread[1]

    def _start(self, wanted: Compilation, future: CompileFuture, priority: m.Priority) -> None:
        try:
            self._ask(wanted, future, priority)
        except Exception:  # noqa: BLE001 - an error of the kernel's own: Triton raises it for whoever wants the result
            future.arrived(wanted.make)

    def _ask(self, wanted: Compilation, future: CompileFuture, priority: m.Priority) -> None:
        if wanted.is_for_here or wanted.is_cached:
            future.arrived(wanted.make)
            return
        try:
            recipe, body = wanted.request()
        except NotPortable:
            future.arrived(wanted.make)
            return
        if error := no_toolchain(with_torch=False):
            future.arrived(functools.partial(_without_pool, wanted, error))
            return
        make = functools.partial(m.Compile, recipe=recipe, priority=priority)
        self.pool.request(make, (body,), functools.partial(_answered, wanted, future), future)


def _answered(
    wanted: Compilation,
    future: CompileFuture,
    answer: m.AnyMessage | CompilePoolError,
    segments: Sequence[bytes],
) -> None:
    finish: Callable[[], Any]
    if isinstance(answer, PoolUnavailable):
        finish = functools.partial(_without_pool, wanted, answer)
    elif isinstance(answer, CompileError):
        finish = functools.partial(_with_tritons_error, wanted, answer)
    elif isinstance(answer, CompilePoolError):
        finish = functools.partial(_raise, answer)
    else:
        finish = functools.partial(_load, wanted, answer, segments)
    future.arrived(finish)


def _load(wanted: Compilation, answer: Any, segments: Sequence[bytes]) -> Any:
    """Triton's own kernel, from the answer's files."""
    try:
        verify(answer.contents, segments)
        (unit,) = answer.contents.units
        _put(unit, segments[1:], wanted.hash)
    except (OSError, DamagedContents, ValueError) as exc:
        return _without_pool(wanted, PoolUnavailable(f"the answer can't be used: {exc}", wanted.name))
    kernel = wanted.make()
    setattr(kernel, ANSWERED, (unit, segments[0]))
    return kernel


def _put(unit: m.Unit, files: Sequence[bytes], triton_hash: str) -> None:
    """Into Triton's cache, by its own cache manager: the group file last, which is what it looks for."""
    if unit.triton_hash != triton_hash:
        raise ValueError("it is another kernel's")
    manager = get_cache_manager(triton_hash)
    group = {name: manager.put(raw, name, binary=True) for name, raw in zip(unit.files, files, strict=True)}
    described = next(name for name in unit.files if name.endswith(".json"))
    manager.put_group(described, group)


def _with_tritons_error(wanted: Compilation, error: CompileError) -> Any:
    kernel = wanted.make()
    log.warning("%s compiles in this process, though not in the pool: %s", wanted.name, error)
    return kernel


def _without_pool(wanted: Compilation, error: PoolUnavailable) -> Any:
    say_once(error)
    return wanted.make()


def _raise(error: Exception) -> None:
    raise error


@functools.cache
def default_compiler() -> Compiler:
    """The one of this process."""
    return Compiler()
