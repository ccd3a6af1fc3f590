"""What a `@triton.jit` function is, as one hash that is the same in every process.

Triton's own key of a function, `cache_key`, also depends on what was hashed before it: constants that a callee uses are
part of its caller's key if the callee was hashed first, by way of another kernel (triton/runtime/jit.py,
`DependenciesFinder._update_hash`, takes over what the callee is known to use, and then has it hashed). So two kernels
that share a helper have other keys where they were compiled in the other order. Here each function is hashed by its own
text, the constants that it names, and the hashes of what it calls; the line that it is on is left out.
"""

import hashlib
import inspect
import re
from typing import Any

from triton.language.core import constexpr
from triton.runtime.jit import DependenciesFinder, JITCallable

# The attribute that keeps it, beside Triton's key for which it holds.
KEPT = "_compilepool_content"
_ADDRESS = re.compile(" at 0x[0-9a-f]+")


def content_key(function: JITCallable) -> str:
    """The hash, in hex; raises what Triton raises for a function that it can't hash."""
    kept: tuple[str, str] | None = vars(function).get(KEPT)
    if kept is None or kept[0] != function.cache_key:
        kept = (function.cache_key, _digest(function, {}))
        vars(function)[KEPT] = kept
    return kept[1]


class _Finder(DependenciesFinder):  # type: ignore[misc]
    """Triton's, with keys of callees that no history changes."""

    def __init__(self, function: Any, known: dict[int, str]) -> None:
        nonlocals = inspect.getclosurevars(function.fn).nonlocals
        super().__init__(function.__qualname__, function.__globals__, nonlocals, function.src)
        self._known = known

    def _update_hash(self, func: Any) -> None:
        told = f"{_digest(func, self._known)}, noinline={getattr(func, 'noinline', False)}"
        self.hasher.update(told.encode())


def _digest(function: Any, known: dict[int, str]) -> str:
    if id(function) not in known:
        # It may call itself.
        known[id(function)] = f"recursion:{function.__qualname__}"
        finder = _Finder(function, known)
        finder.visit(function.parse())
        # Of what is neither a function nor a module, Triton's key has constants only.
        named = [(name, value) for (name, _), (value, _) in finder.used_global_vals.items()]
        found = {(name, _text(value.value)) for name, value in named if isinstance(value, constexpr)}
        known[id(function)] = hashlib.sha256(f"{finder.ret}{sorted(found)}".encode()).hexdigest()
    return known[id(function)]


def _text(value: Any) -> str:
    """A constant, wherever in memory it is; `@tl.constexpr` makes one of a function."""
    code = getattr(value, "__code__", None)
    return _ADDRESS.sub("", repr(value)) + (code.co_code.hex() if code else "")
