"""A Triton cache manager that counts what is compiled, in whichever process it is.

TRITON_CACHE_MANAGER=benchmarks.counting:CountingCacheManager lets Triton use it; each unit that is compiled puts one
TTIR into the cache, and a line with the process's number into the file that COUNT_VARIABLE names.
"""

import os
from pathlib import Path
from typing import Any

from triton.runtime.cache import FileCacheManager

MANAGER = "benchmarks.counting:CountingCacheManager"
# A TRITON_ variable travels to the workers.
COUNT_VARIABLE = "TRITON_COMPILEPOOL_COUNT"


class CountingCacheManager(FileCacheManager):  # type: ignore[misc]
    """Triton's own, and the count."""

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        """Triton's own."""
        if filename.endswith(".ttir"):
            with Path(os.environ[COUNT_VARIABLE]).open("a") as file:
                file.write(f"{os.getpid()}\n")
        path: str = super().put(data, filename, binary)
        return path


def counted(file: Path) -> list[int]:
    """Which process compiled each unit."""
    return [int(line) for line in file.read_text().splitlines()] if file.exists() else []
