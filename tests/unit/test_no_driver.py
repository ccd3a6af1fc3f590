"""An empty library stands where a driver would be looked for."""

import subprocess
import sys

import pytest

from compilepool.daemon.worker.no_driver import DRIVERS, empty_library

ASK = """
import ctypes, sys
from compilepool.daemon.worker.no_driver import occupy
occupy()
driver = ctypes.CDLL(sys.argv[1])
mapped = open("/proc/self/maps").read()
print(hasattr(driver, "cuInit"), sys.argv[1] in mapped, "compilepool-no-driver" in mapped)
"""


@pytest.mark.parametrize("name", DRIVERS)
def test_who_asks_for_the_driver_gets_the_empty_library(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", ASK, name], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "True"]


def test_it_is_a_few_hundred_bytes() -> None:
    assert len(empty_library("libcuda.so.1")) < 1000
