"""Pickles whose paths move: what lies under a worker's directories there lies under the client's here.

A worker compiles in a scratch directory, but torch writes absolute paths into the autotuner (its file name, its
autotune cache, the binary's location). While pickling, every string or path below a known root is replaced by
`(root's name, path below it)`, by pickle's own persistent ids; while unpickling, by the client's path.

The binaries are in it too, byte for byte what stands in Triton's cache: each is replaced by the name of its file.

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
# In the place of a root's name: what follows is a file's. Shorter contents may be equal by chance.
_FILE, _FILE_BYTES = "file", 256


def dump_portable(obj: object, roots: Mapping[str, str], files: Mapping[bytes, str] | None = None) -> bytes:
    """Pickle `obj`.

    roots: absolute paths here, to the names of the roots that they are
    files: contents that travel beside the pickle, to their names
    """
    buffer = io.BytesIO()
    _Pickler(buffer, roots, files or {}).dump(obj)
    return buffer.getvalue()


def load_portable(pickled: bytes, roots: Mapping[str, str], files: Mapping[str, bytes] | None = None) -> object:
    """Unpickle what `dump_portable` made.

    roots: names of roots, to absolute paths here
    files: names of files, to their contents
    Raises pickle.UnpicklingError on a root or file that is not there.
    """
    return _Unpickler(io.BytesIO(pickled), roots, files or {}).load()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, roots: Mapping[str, str], files: Mapping[bytes, str]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._files = files
        # The longest first: one root may lie below another.
        self._roots = sorted(roots.items(), key=lambda root: -len(root[0]))

    def persistent_id(self, obj: Any) -> tuple[str, str, bool] | None:
        if isinstance(obj, bytes) and len(obj) >= _FILE_BYTES and (name := self._files.get(obj)):
            return _FILE, name, False
        if not isinstance(obj, str | PurePath):
            return None
        path, is_path = str(obj), isinstance(obj, PurePath)
        for root, name in self._roots:
            if path == root or path.startswith(root + "/"):
                return name, path[len(root) :], is_path
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, roots: Mapping[str, str], files: Mapping[str, bytes]) -> None:
        super().__init__(file)
        self._roots = roots
        self._files = files

    def persistent_load(self, pid: Any) -> str | PurePath | bytes:
        name, below, is_path = pid
        if name == _FILE:
            if below not in self._files:
                raise pickle.UnpicklingError(f"the pickle refers to an unknown file {below!r}")
            return self._files[below]
        if name not in self._roots:
            raise pickle.UnpicklingError(f"the pickle refers to an unknown root {name!r}")
        path = self._roots[name] + below
        return PurePath(path) if is_path else path
