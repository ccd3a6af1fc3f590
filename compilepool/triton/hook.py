"""`install`: the first call of every `@triton.jit` kernel in this process asks the pool.

A `JITFunction` keeps Triton's `compile` in an attribute of its own, set before its first compile and called for each.
While installed, that name is a property of the class: it keeps what is set, and gives out a function that asks
the pool first. `uninstall` takes the property away, and every object has what it had.
"""

from collections.abc import Callable
from typing import Any

from triton.compiler.compiler import ASTSource
from triton.runtime.jit import JITFunction

from compilepool.triton.compilation import Compilation
from compilepool.triton.compiler import Compiler, default_compiler

_NAME = "compile"


def install(*, compiler: Compiler | None = None) -> None:
    """Have every kernel that this process compiles from here on compiled by the pool; nothing else changes.

    A daemon and its forkserver are started if need be, in the background.
    """
    asked = compiler or default_compiler()
    setattr(JITFunction, _NAME, property(lambda kernel: _asking(asked, kernel), _keep))
    asked.prepare()


def uninstall() -> None:
    """Let Triton compile by itself again."""
    if is_installed():
        delattr(JITFunction, _NAME)


def is_installed() -> bool:
    """Whether kernels are asked for."""
    return _NAME in vars(JITFunction)


def _keep(kernel: Any, value: Callable[..., Any]) -> None:
    vars(kernel)[_NAME] = value


def _asking(compiler: Compiler, kernel: Any) -> Callable[..., Any]:
    try:
        own: Callable[..., Any] = vars(kernel)[_NAME]
    except KeyError:
        raise AttributeError(_NAME) from None

    def compile_or_ask(src: Any, target: Any = None, options: Any = None, **rest: Any) -> Any:
        if type(src) is not ASTSource or target is None:
            return own(src, target=target, options=options, **rest)
        variables = {"variables": rest["_env_vars"]} if rest.get("_env_vars") is not None else {}
        return compiler.compile(Compilation(src, target, dict(options or {}), **variables))

    return compile_or_ask
