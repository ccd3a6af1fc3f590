"""A kernel as a program asks for it, and what of the program's state decides the answer.

All of it is read when the program asks: `fresh_cache()` and its like change the environment while answers are on
their way, and an answer belongs into the directories that held then.
"""

import functools
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compilepool.canonical import canonical, device_of
from compilepool.protocol import messages as m
from compilepool.protocol.detect import NoToolchain, package_root
from compilepool.protocol.environment import compile_environment

# The inductor settings that torch itself passes to its compile workers.
_SETTINGS = ("use_static_triton_launcher",)


KEEP_IR_VARIABLE = "COMPILEPOOL_KEEP_IR"
_PTXAS_VARIABLE = "TRITON_PTXAS_PATH"


@dataclass(frozen=True, slots=True)
class Wanted:
    """One request for a kernel.

    source: the program's own text; `canonical` goes to the pool
    cache_dir, triton_dir: Inductor's and Triton's cache directories at the time, '' where torch has not said
    fresh: the program asked torch or Triton not to use what is known
    """

    name: str
    source: str
    recipe: m.Recipe
    cache_dir: str = ""
    triton_dir: str = ""
    fresh: bool = False

    @property
    def canonical(self) -> bytes:
        """What is compiled."""
        return canonical(self.source).encode()

    @property
    def digest(self) -> str:
        """SHA-256 of what is compiled, in hexadecimal."""
        return hashlib.sha256(self.canonical).hexdigest()

    def message(
        self, number: int, priority: m.Priority, timeout: float | None = None, *, without_files: bool = False
    ) -> m.Compile:
        """The request, with this id."""
        # What coordinate descent found is none of the configs that the kernel itself proposes.
        exact = '"found_by_coordesc": true' in self.recipe.best_config
        return m.Compile(
            number, self.recipe, priority, self.cache_dir, timeout, without_files, fresh=self.fresh, exact=exact
        )


def wanted(
    name: str, source: str, *, environ: Mapping[str, str] | None = None, settings: Mapping[str, Any] | None = None
) -> Wanted:
    """This kernel, with the environment, settings and directories of this moment.

    environ: default: this process's
    settings: default: torch's, as far as it is imported
    """
    environ = os.environ if environ is None else environ
    config = sys.modules.get("torch._inductor.config")
    if settings is None:
        settings = {name: getattr(config, name) for name in _SETTINGS if hasattr(config, name)}
    fresh = bool(getattr(config, "force_disable_caches", False)) or environ.get("TRITON_ALWAYS_COMPILE") == "1"
    cache_dir, triton_dir, best = _of_torch(source, environ) if _torch_compiles() else (_named(environ), "", "")
    keep_ir = environ.get(KEEP_IR_VARIABLE) == "1"
    changed = _portable(_changed(settings, config))
    recipe = m.Recipe(name, _environment(environ), changed, "" if fresh else best, keep_ir)
    return Wanted(name, source, recipe, cache_dir, triton_dir, fresh)


def _torch_compiles() -> bool:
    """Whether this process has imported what loads kernels: to import it here would take seconds."""
    return "torch._inductor.codecache" in sys.modules


def _of_torch(source: str, environ: Mapping[str, str]) -> tuple[str, str, str]:
    """Both cache directories, and the best config on disk."""
    from compilepool.daemon.worker.autotune import read_best
    from compilepool.reload import directories, source_path

    _, index = device_of(source) or ("", 0)
    cache_dir, triton_dir = directories(environ, index)
    return cache_dir, triton_dir, read_best(source_path(source, cache_dir))


def _named(environ: Mapping[str, str]) -> str:
    named = environ.get("TORCHINDUCTOR_CACHE_DIR")
    return str(Path(named).absolute()) if named else ""


def _changed(settings: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """Without those that have torch's own default: who has not imported torch wants the same, and can't name them."""
    entries = getattr(config, "_config", {})

    def default(name: str) -> object:
        alias = getattr(entries.get(name), "alias", None)
        return default(alias.rsplit(".", 1)[1]) if alias else getattr(entries.get(name), "default", None)

    return {name: value for name, value in settings.items() if name not in entries or default(name) != value}


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What decides the compile; without the ptxas that torch names itself, in whichever process compiles."""
    environment = compile_environment(environ)
    named = environment.get(_PTXAS_VARIABLE)
    if named is not None and os.path.realpath(named) == _torchs_ptxas():
        del environment[_PTXAS_VARIABLE]
    return environment


@functools.cache
def _torchs_ptxas() -> str:
    try:
        return os.path.realpath(package_root("torch") / "bin" / "ptxas")
    except NoToolchain:
        return ""


def _portable(settings: Mapping[str, Any]) -> dict[str, m.Setting]:
    plain = (bool, int, float, str, type(None))
    return {name: value if isinstance(value, plain) else json.dumps(value) for name, value in settings.items()}
