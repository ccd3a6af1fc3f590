"""Notes which of Triton's stages compiles, for the messages about workers that are stopped or die, and shares them.

A backend's `add_stages` gives a table of functions, one for each representation; they are wrapped where they are added.
Triton's own hook for this (`knobs.runtime.add_stages_inspection_hook`) becomes part of the cache keys; this does not.
"""

import functools
from collections.abc import Callable
from typing import Any

from triton.backends import backends

from compilepool.daemon.worker import lowering, note
from compilepool.daemon.worker.note import Step

# By the representation that a stage makes; the first two are passes over what the frontend made of the Python source.
STEPS = {
    "ttir": Step.FRONTEND,
    "ttgir": Step.FRONTEND,
    "llir": Step.LLVM,
    "ptx": Step.LLVM,
    "amdgcn": Step.LLVM,
    "cubin": Step.PTXAS,
    "hsaco": Step.LINKING,
}


def note_stages() -> None:
    """Let every backend of this process note its stages; called once, before the first fork."""
    for backend in backends.values():
        backend.compiler.add_stages = _noting(backend.compiler.add_stages)


def _noting(add_stages: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(add_stages)
    def add(self: Any, stages: dict[str, Callable[..., Any]], *arguments: Any, **named: Any) -> None:
        add_stages(self, stages, *arguments, **named)
        for made, stage in stages.items():
            stages[made] = _noted(stage, STEPS.get(made, Step.LLVM))
        lowering.share(self, stages, arguments[0] if arguments else named["options"])

    return add


def _noted(stage: Callable[..., Any], step: Step) -> Callable[..., Any]:
    def run(*arguments: Any, **named: Any) -> Any:
        note.enter(step)
        return stage(*arguments, **named)

    return run
