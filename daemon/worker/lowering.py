"""From TTIR to a binary, somewhere else: a worker asks for it, and a backend's worker makes it.

    user's worker       source --frontend--> TTIR --ask--> daemon --> backend's worker: TTIR --LLVM, ptxas--> binary
                        goes on as if it had made the binary itself <------------------------------------'

Compiling from TTIR gives the same binary as compiling from source, bit for bit, and takes four fifths of the time; and
TTIR is inert. So what is made of it is the same for everybody with the same toolchain, whoever asked first.

A worker asks only for what the backend would make exactly as it would itself: the same bytes of Triton, LLVM, ptxas and
libdevice (`toolchain_digest`), no variable that changes what they do, no option that names a file. Otherwise, and when
it gets no answer, it compiles on. Names of source files, which come with the line tables, are made the same for all.
"""

import functools
import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton import knobs
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget, Language
from triton.compiler.compiler import make_backend

from compilepool.daemon.worker import note
from compilepool.daemon.worker.note import Step
from compilepool.protocol.contents import checksum
from compilepool.protocol.environment import may_be_set
from compilepool.protocol.errors import CompileError
from compilepool.protocol.messages import Contents, Cost, Lowering, Unit

# Changes when the meaning of a lowering changes.
_VERSION = 1
_SOURCE = "ttir"
_BINARIES = ("cubin", "hsaco")
# Options that name files or arguments of a compiler: nobody compiles by another's.
_NAMES_FILES = ("extern_libs", "ptx_options", "ir_override", "instrumentation_mode")
_LOCATION = re.compile(r'loc\("([^"]+)":(?=\d+:\d+)')
_PACKAGES = re.compile(r"^.*/(?:site|dist)-packages/")
_SHOWN, _SHOWN_PACKAGES, _SHOWN_KERNELS = "/torchinductor", "/python/", "/kernels"
_CHUNK = 1 << 20

# Sends TTIR to the backend of this digest; what came of it, or None: compile it yourself.
Ask = Callable[[Lowering, bytes], tuple[Contents, tuple[bytes, ...]] | None]


@dataclass(frozen=True, slots=True)
class Asker:
    """How this worker asks, and the path that line tables show for its kernel's source ('': written by hand)."""

    ask: Ask
    name: str
    shown: str
    keep_ir: bool


@dataclass(frozen=True, slots=True)
class Made:
    """A binary with what was made on the way ('' where that is not kept), and what Triton notes of them."""

    stages: dict[str, Any]
    metadata: list[tuple[str, Any]]


_asker: Asker | None = None
_environment: dict[str, str] = {}


# ---- the worker that asks


def ask_by(asker: Asker) -> None:
    """From here on this process asks for what comes after TTIR."""
    global _asker
    _asker = asker


def share(backend: Any, stages: dict[str, Callable[..., Any]], options: Any) -> None:
    """Let the stages after TTIR ask first; `stages` of one compile, as the backend has made them."""
    asker = _asker
    if asker is None or _SOURCE not in stages or not _environment_is_plain():
        return
    told = options_of(options)
    if told is None:
        return
    later = list(stages)[list(stages).index(_SOURCE) + 1 :]
    own = {name: stages[name] for name in later}
    made: list[Made | None] = []

    def first(module: Any, metadata: dict[str, Any]) -> Any:
        target = backend.target
        task = Lowering(asker.name, f"{target.backend}:{target.arch}:{target.warp_size}", told, asker.keep_ir)
        note.enter(Step.SHARING)
        answer = asker.ask(task, _canonical(str(module), asker.shown).encode())
        made[:] = [_unpacked(answer, later) if answer else None]
        return following(later[0], module, metadata)

    def following(name: str, module: Any, metadata: dict[str, Any]) -> Any:
        if not made or made[0] is None:
            return own[name](module, metadata)
        metadata.update(made[0].metadata)
        return made[0].stages[name]

    for name in later:
        stages[name] = functools.partial(following, name)
    stages[later[0]] = first


def _unpacked(answer: tuple[Contents, tuple[bytes, ...]], later: list[str]) -> Made | None:
    contents, segments = answer
    (unit,) = contents.units
    stages: dict[str, Any] = dict.fromkeys(later, "")
    for file, segment in zip(unit.files, segments[1:], strict=True):
        stage = file.rpartition(".")[2]
        stages[stage] = segment if stage in _BINARIES else segment.decode()
    return Made(stages, [(name, value) for name, value in json.loads(segments[0])])


def _canonical(ttir: str, shown: str) -> str:
    """With the same file names for everybody."""

    def rename(found: re.Match[str]) -> str:
        path = _PACKAGES.sub(_SHOWN_PACKAGES, found[1])
        if shown and path.startswith(shown + "/"):
            path = _SHOWN + path[len(shown) :]
        elif not shown and path == found[1]:
            # Of a program's own file, its name: the same file is somewhere else for another user.
            path = f"{_SHOWN_KERNELS}/{os.path.basename(path)}"
        return f'loc("{path}":'

    return _LOCATION.sub(rename, ttir)


def remember_environment() -> None:
    """What is set now is the toolchain's own: what a request sets beside it changes what is made."""
    _environment.clear()
    _environment.update(_deciding())


def _environment_is_plain() -> bool:
    return _deciding() == _environment


def _deciding() -> dict[str, str]:
    """The variables that decide what becomes of TTIR; torch's own decide about what comes before."""
    return {
        name: value for name, value in os.environ.items() if may_be_set(name) and not name.startswith("TORCHINDUCTOR_")
    }


# ---- both


def options_of(options: Any) -> str | None:
    """A backend's options as JSON, without its libraries; None if they name files of others."""
    told = dict(options.__dict__)
    libraries = told.pop("extern_libs", None) or ()
    if any(told.pop(name, None) for name in _NAMES_FILES) or not all(_is_own(Path(path)) for _, path in libraries):
        return None
    try:
        return json.dumps(told, sort_keys=True)
    except TypeError:
        # What a program has put there is no plain value.
        return None


def _is_own(library: Path) -> bool:
    """Whether it is Triton's own, by its place or its bytes."""
    own = Path(triton.__file__).parent / "backends"
    if library.is_relative_to(own):
        return True
    same = next(own.glob(f"*/lib/{library.name}"), None)
    return same is not None and same.read_bytes() == library.read_bytes()


@functools.cache
def toolchain_digest() -> str:
    """Of every byte that decides what becomes of TTIR; takes a tenth of a second."""
    digest = hashlib.sha256(f"{_VERSION}\0{_triton_key()}".encode())
    tools = {Path(knobs.nvidia.ptxas.path), Path(knobs.nvidia.ptxas_blackwell.path)}
    libraries = (Path(triton.__file__).parent / "backends").glob("*/lib/*.bc")
    for path in (*sorted(tools, key=lambda tool: tool.name), *sorted(libraries)):
        digest.update(f"\0{path.name}\0".encode())
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def _triton_key() -> str:
    """Triton's own digest of its Python files and of libtriton."""
    from triton.runtime.cache import triton_key

    return str(triton_key())


# ---- the backend's worker


def lower(task: Lowering, ttir: str) -> tuple[Contents, list[bytes]]:
    """Make the binary. Segments: what Triton notes (JSON), then the files; raises CompileError."""
    try:
        backend = make_backend(target_of(task.target))
        options = options_from(backend, task.options)
        if options_of(options) != task.options:
            raise ValueError("its options are none that this toolchain would have made")
        return _lowered(task, ttir, backend, options)
    except Exception as exc:
        raise CompileError(f"its TTIR can't be compiled: {type(exc).__name__}: {exc}", task.name) from exc


def _lowered(task: Lowering, ttir: str, backend: Any, options: Any) -> tuple[Contents, list[bytes]]:
    note.enter(Step.FRONTEND, "")
    metadata: dict[str, Any] = {"target": backend.target, **options.__dict__}
    before = _noted(metadata)
    made = stages_after_ttir(backend, options, ttir, metadata)
    kept = {
        f"kernel.{name}": value if isinstance(value, bytes) else value.encode()
        for name, value in made.items()
        if name in _BINARIES or task.keep_ir
    }
    added = [[name, value] for name, value in _noted(metadata).items() if before.get(name, ...) != value]
    segments = [json.dumps(added).encode(), *kept.values()]
    digest = hashlib.sha256(ttir.encode()).hexdigest()
    unit = Unit("", digest, digest, list(kept))
    target = f"{backend.target.backend}:{backend.target.arch}"
    return Contents([unit], [], [checksum(part) for part in segments], Cost(0.0, 0.0, 0), target), segments


def stages_after_ttir(backend: Any, options: Any, ttir: str, metadata: dict[str, Any]) -> dict[str, str | bytes]:
    """What a backend makes of TTIR, stage by stage; what Triton notes of it is put into `metadata`."""
    # By its name alone, in the working directory: the name is in the line tables of what has no location of its own.
    file = Path("kernel.ttir")
    file.write_text(ttir)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module = ir.parse_mlir_module(str(file), context)
    module.context = context
    stages: dict[str, Callable[..., Any]] = {}
    backend.add_stages(stages, options, Language.TRITON)
    made: dict[str, str | bytes] = {}
    for name in list(stages)[list(stages).index(_SOURCE) + 1 :]:
        module = stages[name](module, metadata)
        made[name] = module if isinstance(module, bytes) else str(module)
    return made


def options_from(backend: Any, text: str) -> Any:
    """A backend's options as `options_of` has told them."""
    # Hashed by some: JSON knows no tuples.
    return backend.parse_options({n: tuple(v) if isinstance(v, list) else v for n, v in json.loads(text).items()})


def target_of(text: str) -> GPUTarget:
    """A target by its name: 'cuda:90:32'."""
    backend, arch, warp_size = text.split(":")
    return GPUTarget(backend, int(arch) if arch.isdigit() else arch, int(warp_size))


def _noted(metadata: dict[str, Any]) -> dict[str, Any]:
    """As Triton writes it."""
    noted: dict[str, Any] = json.loads(json.dumps(metadata, default=vars))
    return noted
