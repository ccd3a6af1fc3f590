"""One minute of the soak; `make soak MINUTES=10` is the whole of it."""

from pathlib import Path

import pytest

from tests.soak import Soak

pytestmark = [pytest.mark.faults, pytest.mark.slow]


def test_a_minute_of_random_kills_loses_nothing(tmp_path: Path) -> None:
    soak = Soak(tmp_path, clients=3, seed=20261121)
    soak.run(60.0)
    assert soak.outcomes["answered"] > 0
    assert sum(soak.kills.values()) > 0
