"""Files of recorded kernels, and kernels for another target than they were recorded for."""

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path


class BadKernelFile(Exception):
    """A file that holds no recorded kernels; the message says which line and what is expected."""


class UnknownTarget(Exception):
    """A target that kernels can't be rewritten for; the message lists those that they can."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A recorded kernel: its name in its source, and the source that torch passed to `AsyncCompile.triton`."""

    name: str
    source: str


# DeviceProperties of each target, as torch reads them off a card of that kind (H200, A100, B200, MI300X).
_DEVICES = {
    "cuda:80": "type='cuda', index=0, multi_processor_count=108, cc=80, major=8, regs_per_multiprocessor=65536, "
    "max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32",
    "cuda:90": "type='cuda', index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, "
    "max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32",
    "cuda:100": "type='cuda', index=0, multi_processor_count=148, cc=100, major=10, regs_per_multiprocessor=65536, "
    "max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32",
    "hip:gfx942": "type='hip', index=0, multi_processor_count=304, cc='gfx942', major=9, "
    "regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=64",
}
TARGETS = tuple(_DEVICES)
_DEVICE = re.compile(r"DeviceProperties\([^()]*\)")


def for_target(kernel: Kernel, target: str) -> Kernel:
    """The kernel as it would be for another target: one of `TARGETS`; raises UnknownTarget."""
    if target not in _DEVICES:
        raise UnknownTarget(f"{target} is no known target; these are: {', '.join(TARGETS)}")
    return replace(kernel, source=_DEVICE.sub(f"DeviceProperties({_DEVICES[target]})", kernel.source))


def read_kernels(path: Path) -> list[Kernel]:
    """The kernels of a `.jsonl` or `.jsonl.gz` file, one a line; raises BadKernelFile."""
    try:
        return list(_parse(path))
    except OSError as exc:
        raise BadKernelFile(f"{path} can't be read: {exc.strerror or exc}") from exc
    except (EOFError, UnicodeDecodeError, zlib.error) as exc:
        raise BadKernelFile(f"{path} is damaged: {exc}") from exc


def bundled(*names: str) -> list[Kernel]:
    """The kernels that come with this package, from files of these names, e.g. 'llama_train'."""
    folder = files("compilepool.kernels")
    return [kernel for name in names for kernel in read_kernels(Path(str(folder / f"{name}.jsonl.gz")))]


def bundled_names() -> list[str]:
    """The names that `bundled` takes."""
    folder = Path(str(files("compilepool.kernels")))
    return sorted(path.name.removesuffix(".jsonl.gz") for path in folder.glob("*.jsonl.gz"))


def _parse(path: Path) -> Iterator[Kernel]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                yield Kernel(_text(record["name"]), _text(record["source"]))
            except (ValueError, KeyError, TypeError) as exc:
                expected = 'one JSON object a line, with "name" and "source"'
                raise BadKernelFile(f"{path}, line {number}: {exc}; expected {expected}") from exc


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    value.encode()
    return value
