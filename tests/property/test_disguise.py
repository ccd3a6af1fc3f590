"""Job numbers, as forkservers are told them."""

from hypothesis import given, strategies as st

from compilepool.daemon.disguise import Disguise

JOBS = st.integers(0, 2**52 - 1)


@given(JOBS, st.binary(min_size=16, max_size=16))
def test_a_number_comes_back(job: int, key: bytes) -> None:
    disguise = Disguise(key)
    told = disguise.told(job)
    assert 0 <= told < 2**52
    assert disguise.job(told) == job


@given(st.binary(min_size=16, max_size=16))
def test_the_next_is_not_the_neighbour(key: bytes) -> None:
    told = [Disguise(key).told(job) for job in range(50)]
    assert len(set(told)) == 50
    assert sorted(told) != told


@given(st.integers(-(2**80), 2**80))
def test_what_was_never_told_is_some_job(told: int) -> None:
    assert 0 <= Disguise(b"x" * 16).job(told) < 2**52
