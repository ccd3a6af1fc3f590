"""Makes an autotuner that was compiled for all ranks this rank's own.

It was compiled from the canonical source, for device 0 and under that source's name. The program's device, file name
and autotune cache are put in; then the autotune cache is asked, as torch asks it when it constructs an autotuner:
another rank may have found the best config meanwhile.
"""

from pathlib import Path
from typing import Any

from torch._inductor.runtime.autotune_cache import AutotuneCache
from torch._inductor.runtime.runtime_utils import triton_config_to_hashable


def localize(autotuner: Any, path: str, index: int | None) -> None:
    """Let it be that of the source at `path`, on device `index` (None: the source names none)."""
    if index is not None and autotuner.device_props.index != index:
        autotuner.device_props = autotuner.device_props._replace(index=index)
        autotuner.triton_meta["device"] = index
        for result in autotuner.compile_results:
            result.compile_meta["device"] = index
    if autotuner.filename is not None and autotuner.filename != path:
        _rename(autotuner, path)
    choose_best(autotuner)


def _rename(autotuner: Any, path: str) -> None:
    autotuner.filename = path
    autotuner.kernel_hash = Path(path).stem
    if (cache := _autotune_cache(autotuner)) is not None:
        own = AutotuneCache.create(autotuner.inductor_meta, path, cache.configs_hash)
        autotuner.save_cache_hook = own and own.save


def choose_best(autotuner: Any) -> None:
    """Keep only what the autotune cache names, if it names one of several results."""
    cache = _autotune_cache(autotuner)
    if cache is None or len(autotuner.compile_results) < 2:
        return
    best = cache.read_best(autotuner.inductor_meta, [result.config for result in autotuner.compile_results])
    if best is None:
        return
    named = triton_config_to_hashable(best)
    for result in autotuner.compile_results:
        if triton_config_to_hashable(result.config) == named:
            result.config.found_by_coordesc = getattr(best, "found_by_coordesc", False)
            autotuner.compile_results = [result]
            autotuner.autotune_cache_info = {"best_config": named, "autotune_cache_state": "hit"}
            return


def _autotune_cache(autotuner: Any) -> Any:
    return getattr(autotuner.save_cache_hook, "__self__", None)
