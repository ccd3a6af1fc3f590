"""Compiles one config of a hand-written kernel: what `triton.compile` does in the program, in a worker, without torch.

    a function    frontend and all that follows, by Triton's own `compile`
    TTIR          what follows; the client has run the frontend, since its function can't be sent

The result is the directory that Triton's cache would have: whoever asked puts it into its own, where Triton finds it.
What arrived must be what was sent, and have the key there that was asked for, or it is not compiled.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import triton
from triton._C.libtriton import get_cache_invalidating_env_vars
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.runtime.cache import get_cache_key

from compilepool.daemon.worker import accesses, lowering, note
from compilepool.daemon.worker.binary import resources
from compilepool.daemon.worker.driver import HeadlessDriver
from compilepool.daemon.worker.files import read_plain
from compilepool.daemon.worker.note import Step
from compilepool.daemon.worker.parcel import unseal
from compilepool.protocol.contents import checksum
from compilepool.protocol.errors import CompileError, PoolUnavailable
from compilepool.protocol.messages import Contents, Cost, Jit, Unit
from compilepool.protocol.terms import Facts, Frontend

_decode_frontend = msgspec.msgpack.Decoder(Frontend).decode


def compile_jit(task: Jit, body: bytes, cache: Path) -> tuple[Contents, list[bytes]]:
    """The files that Triton writes for it. Segments: `Facts` as JSON, then the files.

    Raises CompileError with the compiler's own message; PoolUnavailable when it is not what was asked for.
    """
    target = lowering.target_of(task.target)
    directory = cache / directory_of(task.hash)
    # Kernels may ask for what they are compiled.
    triton.runtime.driver.set_active(HeadlessDriver(target))
    if task.ttir:
        names = _compile_ttir(task, _decode_frontend(body), target, directory)
    else:
        names = _compile_function(task, body, target)
    note.enter(Step.READING)
    return _collect(task, directory, names)


def directory_of(triton_hash: str) -> str:
    """Name of a kernel's directory in a Triton cache (triton/runtime/cache.py, _base32)."""
    return base64.b32encode(bytes.fromhex(triton_hash)).decode().rstrip("=")


def _compile_function(task: Jit, body: bytes, target: GPUTarget) -> list[str]:
    """Compile it; the names of its arguments, as its TTIR has them."""
    note.enter(Step.UNPICKLING, task.config)
    try:
        source, told = unseal(body)
        backend = make_backend(target)
        options = backend.parse_options(told)
        key = get_cache_key(source, backend, options, env_vars=get_cache_invalidating_env_vars())
    except Exception as exc:
        raise PoolUnavailable(f"the function does not arrive: {type(exc).__name__}: {exc}", task.name) from exc
    if hashlib.sha256(key.encode()).hexdigest() != task.hash:
        raise PoolUnavailable("Triton has another key for it here than where it was sent", task.name)
    note.enter(Step.FRONTEND)
    with _errors_of(task):
        triton.compile(source, target=target, options=options.__dict__)
    return accesses.argument_names(source.signature)


def _compile_ttir(task: Jit, frontend: Frontend, target: GPUTarget, directory: Path) -> list[str]:
    with _errors_of(task):
        backend = make_backend(target)
        options = lowering.options_from(backend, frontend.options)
        environment = get_cache_invalidating_env_vars()
        noted = {"hash": task.hash, "target": target, **options.__dict__, **environment}
        noted["triton_version"] = triton.__version__
        name = task.name[:150]
        made = {"ttir": frontend.ttir, **lowering.stages_after_ttir(backend, options, frontend.ttir, noted)}
        directory.mkdir(parents=True)
        for stage, value in made.items():
            (directory / f"{name}.{stage}").write_bytes(value if isinstance(value, bytes) else value.encode())
        (directory / f"{name}.json").write_text(json.dumps(noted, default=vars))
    return frontend.arguments


@contextmanager
def _errors_of(task: Jit) -> Iterator[None]:
    try:
        yield
    except Exception as exc:
        raise CompileError(f"{type(exc).__name__}: {exc}", task.name) from exc


def facts_of(ttir: str, names: Sequence[str]) -> Facts:
    """What can be told from a kernel's TTIR ('': there is none); `names`: of its arguments, as it has them."""
    found = accesses.accessed(ttir, names)
    return Facts(found.reads, found.writes, found.writes_elsewhere) if found else Facts(writes_elsewhere=True)


def _collect(task: Jit, directory: Path, names: Sequence[str]) -> tuple[Contents, list[bytes]]:
    files = sorted(file for file in directory.iterdir() if not file.name.startswith("__grp__"))
    facts = facts_of(next((read_plain(file).decode() for file in files if file.suffix == ".ttir"), ""), names)
    taken = resources(directory)
    said = (taken.registers, taken.spills) if taken else (None, None)
    unit = Unit(task.config, task.hash, directory.name, [file.name for file in files], *said)
    segments = [msgspec.json.encode(facts), *(read_plain(file) for file in files)]
    target = ":".join(task.target.split(":")[:2])
    return Contents([unit], [], [checksum(part) for part in segments], Cost(0.0, 0.0, 0), target), segments
