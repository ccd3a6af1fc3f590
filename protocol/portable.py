"""Pickles whose paths move: what lies under a worker's directories there lies under the client's here.

A worker compiles in a scratch directory, but torch writes absolute paths into the autotuner (its file name, its
autotune cache, the binary's location). While pickling, every string or path below a known root is replaced by
`(root's name, path below it)`, by pickle's own persistent ids; while unpickling, by the client's path.

Only a worker and a client of the same uid use this module: a pickle is code. The daemon never imports it.
"""

import io
import pickle
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

# The two roots that torch and Triton write below.
INDUCTOR_CACHE = "inductor-cache"
TRITON_CACHE = "triton-cache"


def dump_portable(obj: object, roots: Mapping[str, str]) -> bytes:
    """Pickle `obj`; `roots` maps absolute paths here to the names of the roots that they are."""
    buffer = io.BytesIO()
    _Pickler(buffer, roots).dump(obj)
    return buffer.getvalue()


def load_portable(pickled: bytes, roots: Mapping[str, str]) -> object:
    """Unpickle what `dump_portable` made; `roots` maps names of roots to absolute paths here.

    Raises pickle.UnpicklingError on a root that `roots` lacks.
    """
    return _Unpickler(io.BytesIO(pickled), roots).load()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, roots: Mapping[str, str]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        # The longest first: one root may lie below another.
        self._roots = sorted(roots.items(), key=lambda root: -len(root[0]))

    def persistent_id(self, obj: Any) -> tuple[str, str, bool] | None:
        if not isinstance(obj, str | PurePath):
            return None
        path, is_path = str(obj), isinstance(obj, PurePath)
        for root, name in self._roots:
            if path == root or path.startswith(root + "/"):
                return name, path[len(root) :], is_path
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, roots: Mapping[str, str]) -> None:
        super().__init__(file)
        self._roots = roots

    def persistent_load(self, pid: Any) -> str | PurePath:
        name, below, is_path = pid
        if name not in self._roots:
            raise pickle.UnpicklingError(f"the pickle refers to an unknown root {name!r}")
        path = self._roots[name] + below
        return PurePath(path) if is_path else path
