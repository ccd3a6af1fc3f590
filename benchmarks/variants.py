"""Kernels that no store has seen, of a few kinds."""

from dataclasses import replace

from compilepool.corpus import Kernel, bundled

KERNELS, VARIANTS = 4, 8


def variants() -> list[Kernel]:
    """A few kernels, each several times, with a comment that makes it a kernel of its own."""
    kernels = bundled("llama_train")[:KERNELS]
    return [replace(k, source=f"{k.source}\n# {number}\n") for number in range(VARIANTS) for k in kernels]
