"""Compiles one kernel, with all its configs, the way torch's own compile workers do.

The steps and their order are those of `torch._inductor.runtime.compile_tasks._worker_compile_triton`: load the source,
`CachingAutotuner.precompile(warm_cache_only=True)`, `prepare_for_pickle`, pickle. Two things differ, so that the result
does not depend on where it was made, and two so that a program has nothing left to compile or to wait for:

- The source is written to a scratch directory, but compiled as if it stood in the client's cache: its path is in the
  binary's line tables. `__file__` stays in the scratch directory, since torch looks beside it for cached best configs.
- Paths in the pickle are relative to named roots (`protocol.portable`).
- A kernel of several configs may be compiled by several workers (`board`): lead and assistants take one config after
  the other, until none is left that nobody has taken. The lead then runs torch's own loop, which finds everything.
- The smaller reduction blocks that torch tries when a kernel takes many registers are compiled too (`rblock`).
"""

import io
import json
import linecache
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch._inductor.config as inductor_config
from torch._inductor.codecache import PyCodeCache
from torch._inductor.runtime import compile_tasks
from torch._inductor.runtime.cache_dir_utils import default_cache_dir
from torch._inductor.runtime.runtime_utils import triton_hash_to_path_key
from triton.backends.compiler import GPUTarget

from compilepool.daemon.worker import note
from compilepool.daemon.worker.autotune import write_best
from compilepool.daemon.worker.binary import resources
from compilepool.daemon.worker.board import Board
from compilepool.daemon.worker.files import read_plain
from compilepool.daemon.worker.headless import headless
from compilepool.daemon.worker.note import Step
from compilepool.daemon.worker.rblock import scale_rblock
from compilepool.protocol.contents import checksum
from compilepool.protocol.errors import CompileError
from compilepool.protocol.messages import Contents, Cost, Dropped, Recipe, Unit
from compilepool.protocol.portable import INDUCTOR_CACHE, TRITON_CACHE, dump_portable

# Found while the forkserver starts: in a worker, the temporary directory that it lies in is the worker's own.
_DEFAULT_CACHE = default_cache_dir()
_NO_COST = Cost(0.0, 0.0, 0)
_LOADED = (".cubin", ".hsaco", ".json")


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
            directory.mkdir(parents=True, exist_ok=True)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(self.inductor)
        os.environ["TRITON_CACHE_DIR"] = str(self.triton)

    def roots(self) -> dict[str, str]:
        """What `dump_portable` makes relative."""
        return {str(self.inductor): INDUCTOR_CACHE, str(self.triton): TRITON_CACHE, self.shown: INDUCTOR_CACHE}


def scratch(root: Path, cache_dir: str) -> Scratch:
    """The scratch directories below `root` for a client whose Inductor cache is `cache_dir` ('': the default)."""
    return Scratch(root, cache_dir or _DEFAULT_CACHE)


def compile_kernel(recipe: Recipe, source: str, place: Scratch, board: Board) -> tuple[Contents, list[bytes]]:
    """Compile every config of one kernel: the contents (without their cost) and their segments.

    Raises CompileError, with the compiler's own message and the config it was about.
    """
    with _loaded(recipe, source, place) as autotuner:
        attempts = Attempts(autotuner, recipe.name)
        attempts.compile_all(board)
        try:
            note.enter(Step.READING, "")
            scale_rblock(autotuner, place.triton)
            note.enter(Step.PICKLING, "")
            autotuner.prepare_for_pickle()
            return _collect(autotuner, attempts.dropped, place, keep_ir=recipe.keep_ir)
        except Exception as exc:
            raise CompileError(f"it compiles, but can't be handed over: {_said(exc)}", recipe.name) from exc


def assist(recipe: Recipe, source: str, place: Scratch, board: Board) -> None:
    """Compile configs that nobody has taken, into the lead's directory; those that fail are left to the lead."""
    with _loaded(recipe, source, place) as autotuner:
        if len(board) == len(autotuner.configs):
            attempts = Attempts(autotuner, recipe.name)
            attempts.compile_unclaimed(board)


@contextmanager
def _loaded(recipe: Recipe, source: str, place: Scratch) -> Iterator[Any]:
    """The kernel's autotuner, for its target and with its settings."""
    _use_torchs_ptxas()
    with inductor_config.patch(_settings(recipe)), headless() as driver:
        try:
            note.enter(Step.EXECUTING, "")
            autotuner = load_autotuner(recipe.name, source, place, recipe.best_config)
        except BaseException as exc:
            # Also what a program ends with: SystemExit, KeyboardInterrupt. Signals end the worker, and raise nothing.
            raise CompileError(f"its source can't be executed: {_said(exc)}", recipe.name) from exc
        driver.target = target_of(autotuner)
        yield autotuner


def _use_torchs_ptxas() -> None:
    """As torch's own workers do: by torch's function, which some versions call once and never again."""
    name_it = compile_tasks._set_triton_ptxas_path
    getattr(name_it, "__wrapped__", name_it)()


def _settings(recipe: Recipe) -> dict[str, Any]:
    """As torch has them: what is no plain value travels as JSON."""
    settings: dict[str, Any] = dict(recipe.settings)
    if table := settings.get("autotune_lookup_table"):
        settings["autotune_lookup_table"] = json.loads(table)
    return settings


def load_autotuner(name: str, source: str, place: Scratch, best_config: str = "") -> Any:
    """Execute a kernel's source and return its CachingAutotuner; whatever the source raises, this raises."""
    key, path = PyCodeCache.write(source)
    if best_config:
        write_best(path, best_config)
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


class Attempts:
    """Compiles the configs of an autotuner, each once, and keeps what became of them."""

    def __init__(self, autotuner: Any, name: str) -> None:
        self.dropped: list[Dropped] = []
        self._autotuner = autotuner
        self._name = name
        self._compile = autotuner._precompile_config
        self._configs: list[Any] = list(autotuner.configs)
        self._results: dict[int, Any] = {}
        self._failed: dict[int, Exception] = {}

    def order(self) -> list[int]:
        """The configs' numbers, those first that are expected to take longest: the most elements for one thread."""
        return sorted(range(len(self._configs)), key=lambda index: -_elements_of_a_thread(self._configs[index]))

    def compile(self, index: int) -> None:
        """Compile one config, and keep its result or what was raised."""
        try:
            note.enter(Step.FRONTEND, str(self._configs[index]))
            self._results[index] = self._compile(self._configs[index])
        except Exception as exc:  # noqa: BLE001 - torch's loop decides which of them drop a config
            self._failed[index] = exc

    def compile_unclaimed(self, board: Board) -> None:
        """Compile one config after the other that nobody has taken, until none is left or one fails."""
        for index in board.claims(self.order()):
            self.compile(index)
            if index in self._failed:
                # Most errors are the kernel's and would be every config's: torch's loop says which are not.
                break

    def compile_all(self, board: Board) -> None:
        """Compile all configs together with whoever assists, then let torch's own loop choose from the results.

        Raises CompileError as that does: configs that CachingAutotuner drops are kept with their reasons.
        """
        if len(self._configs) > 1:
            board.lay_out(len(self._configs))
            self.compile_unclaimed(board)
        self._autotuner._precompile_config = lambda config: self._look_up(config, board)
        try:
            self._autotuner.precompile(warm_cache_only=True)
        except Exception as exc:
            raise self._error(exc) from exc
        finally:
            del self._autotuner._precompile_config

    def _look_up(self, config: Any, board: Board) -> Any:
        index = next(number for number, known in enumerate(self._configs) if known is config)
        if index not in self._results and index not in self._failed:
            if len(self._configs) > 1:
                note.enter(Step.WAITING, str(config))
                board.wait(index)
            self.compile(index)
        if (error := self._failed.get(index)) is not None:
            self.dropped.append(Dropped(str(config), _said(error)))
            raise error
        return self._results[index]

    def _error(self, exc: Exception) -> CompileError:
        """What ended torch's loop: one config's error, or that no config was left, and why."""
        reasons = [f"config {dropped.config}: {dropped.reason}" for dropped in self.dropped]
        ended = _said(exc)
        told = reasons[-1:] if reasons and self.dropped[-1].reason == ended else [ended, *reasons]
        return CompileError("; ".join(told), self._name)


def _elements_of_a_thread(config: Any) -> float:
    blocks = [value for name, value in config.kwargs.items() if "BLOCK" in name and isinstance(value, int)]
    return float(math.prod(blocks) / max(1, config.num_warps))


def _collect(autotuner: Any, dropped: list[Dropped], place: Scratch, *, keep_ir: bool) -> tuple[Contents, list[bytes]]:
    segments: list[bytes] = []
    units = []
    named = {}
    for result in autotuner.compile_results:
        directory = triton_hash_to_path_key(result.kernel.hash)
        files = sorted(file for file in (place.triton / directory).iterdir() if _is_kept(file, keep_ir=keep_ir))
        for file in files:
            segments.append(read_plain(file))
            named[segments[-1]] = f"{directory}/{file.name}"
        taken = resources(place.triton / directory)
        said = (taken.registers, taken.spills) if taken else (None, None)
        units.append(Unit(str(result.config), result.kernel.hash, directory, [file.name for file in files], *said))
    segments.insert(0, dump_portable(autotuner, place.roots(), named))
    backend = target_of(autotuner)
    target = f"{backend.backend}:{backend.arch}"
    return Contents(units, dropped, [checksum(segment) for segment in segments], _NO_COST, target), segments


def _is_kept(file: Path, *, keep_ir: bool) -> bool:
    """What loads a kernel; the rest, three quarters of the bytes, is for people. Group files hold paths."""
    return not file.name.startswith("__grp__") and (keep_ir or file.suffix in _LOADED)


def _said(exc: BaseException) -> str:
    """The exception in its own words, with those of its cause."""
    try:
        text = f"{type(exc).__name__}: {exc}"
    except Exception as worse:  # noqa: BLE001 - it is the kernel's own, and may raise anything when it is asked
        text = f"{type(exc).__name__}, which raised {type(worse).__name__} when it was asked what it says"
    return f"{text} (from {_said(exc.__cause__)})" if exc.__cause__ else text
