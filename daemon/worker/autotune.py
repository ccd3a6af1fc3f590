"""Where torch keeps the best config of a kernel that it has tuned: a small JSON file beside the kernel's source.

torch reads it when the kernel's autotuner is constructed, and then compiles that config alone. A worker has no such
files, so the client sends what it has (`Recipe.best_config`) and the worker puts it where torch will look.
"""

import json
from pathlib import Path
from typing import Any

from torch._inductor.runtime.autotune_cache import AutotuneCache

# What torch reads past, or only reports (torch/_inductor/runtime/autotune_cache.py, _load_cached_autotuning).
_REMARKS = ("time_taken_ms", "triton_cache_hash")


def cache_of(path: str, configs_hash: str = "") -> AutotuneCache | None:
    """torch's own cache of best configs for the kernel whose source lies at `path`."""
    meta = {"autotune_local_cache": True, "autotune_remote_cache": False}
    return AutotuneCache.create(meta, path, configs_hash)


def read_best(path: str) -> str:
    """What is on disk for the kernel whose source lies at `path`: JSON with sorted keys, or ''."""
    try:
        told: Any = json.loads(_file(path).read_bytes())
    except (OSError, ValueError):
        return ""
    if not isinstance(told, dict) or not told:
        return ""
    return json.dumps({name: value for name, value in told.items() if name not in _REMARKS}, sort_keys=True)


def write_best(path: str, best: str) -> None:
    """Let torch find `best` for the kernel whose source lies at `path`."""
    file = _file(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(best)


def _file(path: str) -> Path:
    cache = cache_of(path)
    if cache is None or cache.local_cache is None:
        raise FileNotFoundError("torch has no local cache of best configs")
    return Path(cache.local_cache[1])
