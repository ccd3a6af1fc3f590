"""Compiles in the worker what torch would compile in the program: a reduction with a smaller block.

Where a reduction takes so many registers that the GPU can't be filled, `CachingAutotuner._dynamic_scale_rblock`
compiles it once more with half the block, and both are benchmarked. It needs register counts, which a program has from
the driver once a kernel is loaded; so the program does that compile itself, one kernel after the other. Here the counts
come from the binary (`binary`), the decision is torch's own code, and the program finds the smaller one among the
results.

torch decides on the configs that it compiled, not on those that it added: it adds them before they are loaded, so they
have no counts. A program that gets them ready-made would load them all and scale again. So when something was added,
the program's own check is switched off, by torch's own switch; when nothing was, it stays as it is, and finds nothing.
"""

from pathlib import Path
from typing import Any

from torch._inductor.runtime.runtime_utils import triton_hash_to_path_key

from compilepool.daemon.worker.binary import resources


def scale_rblock(autotuner: Any, cache: Path) -> None:
    """Add what torch would add to the results of an autotuner whose configs are compiled, into `cache`."""
    before = list(autotuner.compile_results)
    if not _knows_registers(before, cache):
        return
    # It would load them, to have their registers; the instance's own attribute comes before the class's.
    autotuner._make_launchers = lambda: None
    try:
        autotuner._dynamic_scale_rblock()
    except Exception:  # noqa: BLE001 - the program tries for itself, as it would without the pool
        autotuner.compile_results = before
    finally:
        del autotuner._make_launchers
        autotuner.__dict__.pop("_could_rblock_scale", None)
        for result in before:
            del result.kernel.n_regs
    if len(autotuner.compile_results) > len(before):
        autotuner.inductor_meta["dynamic_scale_rblock"] = False


def _knows_registers(results: list[Any], cache: Path) -> bool:
    """Give each kernel its registers; False, and none has any, if one of them is not known."""
    known = [resources(cache / triton_hash_to_path_key(result.kernel.hash)) for result in results]
    if any(taken is None for taken in known):
        return False
    for result, taken in zip(results, known, strict=True):
        result.kernel.n_regs = taken.registers if taken else None
    return True
