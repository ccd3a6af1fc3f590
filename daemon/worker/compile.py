"""Compiles one kernel, with all its configs, the way torch's own compile workers do.

The steps and their order are those of `torch._inductor.runtime.compile_tasks._worker_compile_triton`: load the source,
`CachingAutotuner.precompile(warm_cache_only=True)`, `prepare_for_pickle`, pickle. Two things differ, so that the result
does not depend on where it was made:

- The source is written to a scratch directory, but compiled as if it stood in the client's cache: its path is in the
  binary's line tables. `__file__` stays in the scratch directory, since torch looks beside it for cached best configs.
- Paths in the pickle are relative to named roots (`protocol.portable`).
"""

import io
import linecache
import os
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch._inductor.config as inductor_config
from torch._inductor.codecache import PyCodeCache
from torch._inductor.runtime import compile_tasks
from torch._inductor.runtime.cache_dir_utils import default_cache_dir
from torch._inductor.runtime.runtime_utils import triton_hash_to_path_key
from triton.backends.compiler import GPUTarget

from compilepool.daemon.worker.headless import headless
from compilepool.protocol.contents import checksum
from compilepool.protocol.errors import CompileError
from compilepool.protocol.messages import Contents, Cost, Dropped, Recipe, Unit
from compilepool.protocol.portable import INDUCTOR_CACHE, TRITON_CACHE, dump_portable

# Found while the forkserver starts: in a worker, the temporary directory that it lies in is the worker's own.
_DEFAULT_CACHE = default_cache_dir()
_NO_COST = Cost(0.0, 0.0, 0)


@dataclass(frozen=True, slots=True)
class Scratch:
    """A worker's private directories below one root, and the path that line tables show for the sources."""

    root: Path
    shown: str

    @property
    def inductor(self) -> Path:
        """Inductor's cache directory here."""
        return self.root / "inductor"

    @property
    def triton(self) -> Path:
        """Triton's cache directory here."""
        return self.root / "triton"

    def enter(self) -> None:
        """Make the directories, and let this process's torch and Triton use them."""
        for directory in (self.inductor, self.triton):
            directory.mkdir(parents=True)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(self.inductor)
        os.environ["TRITON_CACHE_DIR"] = str(self.triton)

    def roots(self) -> dict[str, str]:
        """What `dump_portable` makes relative."""
        return {str(self.inductor): INDUCTOR_CACHE, str(self.triton): TRITON_CACHE, self.shown: INDUCTOR_CACHE}


def scratch(root: Path, cache_dir: str) -> Scratch:
    """The scratch directories below `root` for a client whose Inductor cache is `cache_dir` ('': the default)."""
    return Scratch(root, cache_dir or _DEFAULT_CACHE)


def compile_kernel(recipe: Recipe, source: str, place: Scratch) -> tuple[Contents, list[bytes]]:
    """Compile every config of one kernel: the contents (without their cost) and their segments.

    Raises CompileError, with the compiler's own message and the config it was about.
    """
    compile_tasks._set_triton_ptxas_path()
    with inductor_config.patch(dict(recipe.settings)), headless() as driver:
        try:
            autotuner = load_autotuner(recipe.name, source, place)
        except Exception as exc:
            raise CompileError(f"its source can't be executed: {_said(exc)}", recipe.name) from exc
        driver.target = target_of(autotuner)
        dropped = _precompile(autotuner, recipe.name)
        autotuner.prepare_for_pickle()
        return _collect(autotuner, dropped, place)


def load_autotuner(name: str, source: str, place: Scratch) -> Any:
    """Execute a kernel's source and return its CachingAutotuner; whatever the source raises, this raises."""
    key, path = PyCodeCache.write(source)
    shown = path.replace(str(place.inductor), place.shown, 1)
    linecache.cache[shown] = (len(source), None, _lines(source), shown)
    # torch's own name for it: Triton hashes the name into the keys of some kernels.
    module = ModuleType(f"{compile_tasks.__name__}.{key}")
    module.__file__ = path
    exec(compile(source, shown, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - what a worker is for
    return getattr(module, name)


def _lines(source: str) -> list[str]:
    """The lines as linecache reads them off a file, the last one ended too: Triton hashes them."""
    lines = io.StringIO(source, newline=None).readlines()
    return [*lines[:-1], lines[-1].removesuffix("\n") + "\n"] if lines else []


def target_of(autotuner: Any) -> GPUTarget:
    """The target that the kernel's source names."""
    props = autotuner.device_props
    return GPUTarget(props.type, props.cc, props.warp_size or 32)


@dataclass(slots=True)
class _Attempts:
    """What became of each config."""

    current: str = ""
    dropped: list[Dropped] = field(default_factory=list)


def _precompile(autotuner: Any, name: str) -> list[Dropped]:
    """Compile all configs; those that CachingAutotuner drops are returned with the reason."""
    attempts = _Attempts()
    compile_config = autotuner._precompile_config

    def noted(config: Any) -> Any:
        attempts.current = str(config)
        try:
            return compile_config(config)
        except Exception as exc:
            attempts.dropped.append(Dropped(str(config), _said(exc)))
            raise

    autotuner._precompile_config = noted
    try:
        autotuner.precompile(warm_cache_only=True)
    except Exception as exc:
        raise CompileError(f"config {attempts.current}: {_said(exc)}", name) from exc
    finally:
        del autotuner._precompile_config
    return attempts.dropped


def _collect(autotuner: Any, dropped: list[Dropped], place: Scratch) -> tuple[Contents, list[bytes]]:
    segments = [dump_portable(autotuner, place.roots())]
    units = []
    for result in autotuner.compile_results:
        directory = triton_hash_to_path_key(result.kernel.hash)
        files = sorted(file for file in (place.triton / directory).iterdir() if not file.name.startswith("__grp__"))
        segments += [file.read_bytes() for file in files]
        units.append(Unit(str(result.config), result.kernel.hash, directory, [file.name for file in files]))
    return Contents(units, dropped, [checksum(segment) for segment in segments], _NO_COST), segments


def _said(exc: BaseException) -> str:
    """The exception in its own words, with those of its cause."""
    text = f"{type(exc).__name__}: {exc}"
    return f"{text} (from {_said(exc.__cause__)})" if exc.__cause__ else text
