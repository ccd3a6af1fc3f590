import pytest

from tests.hosts.day import live


@pytest.mark.slow
def test_a_day_in_the_life_of_an_administrator() -> None:
    told: list[str] = []
    live(told.append)
    assert len(told) > 15
