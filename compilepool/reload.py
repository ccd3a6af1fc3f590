"""From an answer's bytes to an autotuner: files into this process's Triton cache (`emit`), unpickle, launchers."""

import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._inductor.codecache import _load_triton_kernel_from_source, code_hash
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from compilepool.canonical import device_of
from compilepool.emit import emit, write_file
from compilepool.kernel import Wanted
from compilepool.localize import localize
from compilepool.protocol.contents import DamagedContents, verify
from compilepool.protocol.errors import PoolUnavailable
from compilepool.protocol.messages import Contents
from compilepool.protocol.portable import INDUCTOR_CACHE, TRITON_CACHE, load_portable


def reload_autotuner(wanted: Wanted, contents: Contents, segments: Sequence[bytes]) -> Any:
    """The CachingAutotuner of an answer; with launchers if this process has the GPU that it was compiled for.

    Raises PoolUnavailable if the answer is damaged, or its files can't be written.
    """
    name, source = wanted.name, wanted.source
    autotuner = unpack(wanted, contents, segments)
    autotuner.restore_after_unpickle(old_values=None)
    if can_launch(autotuner):
        autotuner.precompile(warm_cache_only=False, reload_kernel=lambda: _load_triton_kernel_from_source(name, source))
    return autotuner


def unpack(wanted: Wanted, contents: Contents, segments: Sequence[bytes]) -> Any:
    """The CachingAutotuner of an answer as torch's own compile workers return it; its binaries are in Triton's cache.

    Raises PoolUnavailable as `reload_autotuner`.
    """
    kind_and_index = device_of(wanted.source)
    index = kind_and_index[1] if kind_and_index else None
    try:
        verify(contents, segments)
        inductor, triton = wanted.cache_dir, wanted.triton_dir
        if not triton:
            inductor, triton = directories(os.environ, index or 0)
        path = source_path(wanted.source, inductor)
        _write_source(wanted.source, Path(path))
        files = emit(contents, segments, Path(triton))
        autotuner: Any = load_portable(segments[0], {INDUCTOR_CACHE: inductor, TRITON_CACHE: triton}, files)
    except OSError as exc:
        raise PoolUnavailable(f"the answer's files can't be written: {exc}", wanted.name) from exc
    except (DamagedContents, pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError) as exc:
        raise PoolUnavailable(f"the answer is damaged: {exc}", wanted.name) from exc
    localize(autotuner, path, index)
    return autotuner


def directories(environ: Mapping[str, str], index: int) -> tuple[str, str]:
    """Inductor's and Triton's cache directories, as torch finds them for a device."""
    inductor = os.path.abspath(environ.get("TORCHINDUCTOR_CACHE_DIR") or default_cache_dir())
    return inductor, environ.get("TRITON_CACHE_DIR") or os.path.join(inductor, "triton", str(index))


def source_path(source: str, cache_dir: str) -> str:
    """Where torch keeps a kernel's source (torch/_inductor/codecache.py, write and get_path)."""
    key = code_hash(source.strip())
    return os.path.join(cache_dir, key[1:3], f"{key}.py")


def _write_source(source: str, path: Path) -> None:
    if not path.exists():
        try:
            write_file(path, source.encode())
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, source.encode())


def can_launch(autotuner: Any) -> bool:
    """Whether this process has a GPU of the kind that the kernel was compiled for."""
    props = autotuner.device_props
    if not torch.cuda.is_available():
        return False
    if torch.version.hip:
        arch = torch.cuda.get_device_properties(props.index).gcnArchName.split(":")[0]
        return bool(props.type == "hip" and props.cc == arch)
    major, minor = torch.cuda.get_device_capability(props.index)
    return bool(props.type == "cuda" and props.cc == 10 * major + minor)
