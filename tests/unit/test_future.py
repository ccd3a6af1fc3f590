from concurrent.futures import CancelledError, as_completed, wait

import pytest

from compilepool.future import CompileFuture, PoolFuture
from compilepool.protocol.errors import CompileError


def test_the_first_result_finishes_it_once() -> None:
    future = CompileFuture("k")
    made: list[object] = []

    def finish() -> object:
        made.append(object())
        return made[-1]

    future.arrived(finish)
    assert future.done()
    assert made == []
    assert future.result() is future.result() is made[0]
    assert len(made) == 1


def test_an_error_is_raised_each_time_and_told_by_exception() -> None:
    future = CompileFuture("k")

    def finish() -> None:
        raise CompileError("no", "k")

    future.arrived(finish)
    assert isinstance(future.exception(), CompileError)
    for _ in range(2):
        with pytest.raises(CompileError, match="k: no"):
            future.result()


def test_cancelled_stays_cancelled() -> None:
    future = CompileFuture("k")
    assert future.cancel()
    future.arrived(lambda: "too late")
    with pytest.raises(CancelledError):
        future.result()


def test_done_can_no_longer_be_cancelled() -> None:
    future = CompileFuture("k")
    future.arrived(lambda: "autotuner")
    assert not future.cancel()


def test_works_with_concurrent_futures() -> None:
    futures = [CompileFuture(str(n)) for n in range(3)]
    for future in futures:
        future.arrived(lambda: "autotuner")
    assert {future.result() for future in as_completed(futures, timeout=1)} == {"autotuner"}


def test_waiting_ends_by_itself() -> None:
    with pytest.raises(TimeoutError):
        CompileFuture("k").result(timeout=0)


def test_who_waits_with_concurrent_futures_is_told_of_a_cancel() -> None:
    future = CompileFuture("cancelled")
    future.cancel()
    future.cancel()
    done, waiting = wait([future], timeout=10)
    assert (done, waiting) == ({future}, set())


def test_the_first_who_blocks_makes_it_urgent() -> None:
    told: list[str] = []
    future: PoolFuture[int] = PoolFuture()
    future.on_blocked = lambda: told.append("urgent")
    with pytest.raises(TimeoutError):
        future.result(timeout=0)
    with pytest.raises(TimeoutError):
        future.exception(timeout=0)
    future.set_result(5)
    assert future.result() == 5
    assert told == ["urgent"]


def test_what_is_there_is_not_urgent() -> None:
    told: list[str] = []
    future: PoolFuture[int] = PoolFuture()
    future.on_blocked = lambda: told.append("urgent")
    future.set_result(5)
    assert future.result() == 5
    assert told == []
