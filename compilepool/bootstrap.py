"""How this package's own commands are run in a program's interpreter.

The command must find the same packages as the program does, however that came to have them (a checkout, a changed
`sys.path`): their roots are appended to the interpreter's own path. The working directory and the script's directory,
which may hold a `queue.py` or `types.py`, are not on it.
"""

import importlib.util
import os
import sys
from pathlib import Path

_BOOTSTRAP = (
    "import sys; sys.path += [p for p in sys.argv.pop(1).split(':') if p not in sys.path]; "
    "from compilepool.cli import main; main()"
)
_PACKAGES = ("compilepool", "msgspec", "anyio", "click", "cloudpickle", "triton", "torch")


def command(*arguments: str) -> list[str]:
    """The command line of `compilepool ARGUMENTS`."""
    return [sys.executable, "-P", "-c", _BOOTSTRAP, os.pathsep.join(_roots()), *arguments]


def _roots() -> list[str]:
    roots: dict[str, None] = {}
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            roots[str(Path(spec.origin).parents[1])] = None
    return list(roots)
