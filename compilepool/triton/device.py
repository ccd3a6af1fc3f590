"""What this process launches on, in the words of a measurement."""

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import triton

from compilepool.daemon.worker.content import content_key
from compilepool.triton.timings import Subject

_DRIVER = Path("/proc/driver/nvidia/version")
_VERSION = re.compile(r"Kernel Module.*?  (\d+[\d.]*)")


def subject_of(kernel: Any, key: Sequence[str]) -> Subject:
    """What is measured of a kernel for these key values, on the current device."""
    driver = triton.runtime.driver.active
    target = driver.get_current_target()
    model, version = _described(driver.get_current_device())
    return Subject(
        kernel.__name__,
        content_key(kernel),
        list(key),
        model or f"{target.backend}:{target.arch}",
        version,
        f"triton {triton.__version__}",
    )


@functools.cache
def _described(device: int) -> tuple[str, str]:
    """Model and driver; '' where torch knows of no device."""
    import torch

    if not torch.cuda.is_available():
        return "", ""
    return torch.cuda.get_device_name(device), _driver()


def _driver() -> str:
    import torch

    if torch.version.hip:
        return f"hip {torch.version.hip}"
    try:
        found = _VERSION.search(_DRIVER.read_text())
    except OSError:
        return ""
    return found[1] if found else ""
