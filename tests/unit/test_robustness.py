"""The scheduler against kernels, forkservers and clients that misbehave; one rule each, on virtual time."""

import pytest

from compilepool.daemon import actions as act, events as ev, requests
from compilepool.daemon.blame import COOLING_SECONDS
from compilepool.daemon.domains import START_SECONDS
from compilepool.daemon.supervision import OBEY_SECONDS, PING_SECONDS
from compilepool.protocol.errors import Failure, FailureKind
from tests.unit.test_scheduler import OTHER, USER, Driver, submit

CRASH = Failure("worker-crashed", "it was killed by SIGSEGV (in phase llvm)", "kernel_k")


@pytest.fixture
def ready() -> Driver:
    driver = Driver()
    driver.forkserver()
    return driver


def run(driver: Driver, request: ev.Submitted) -> int:
    """Submit what the store does not know; the number of its job, which runs."""
    (looked_up,) = driver.feed(request)
    assert isinstance(looked_up, act.LookUp)
    actions = driver.feed(ev.LookedUp(looked_up.job, found=False))
    assert any(isinstance(action, act.Run) for action in actions)
    return looked_up.job


def failures(actions: list[act.Action]) -> list[tuple[FailureKind, str]]:
    return [(action.failure.kind, action.failure.message) for action in actions if isinstance(action, act.Fail)]


class TestBlame:
    def crash(self, driver: Driver, number: int, failure: Failure = CRASH, key: str = "k") -> None:
        driver.feed(ev.JobFailed(run(driver, submit(1, number, key)), failure))

    def test_a_key_that_killed_its_worker_twice_is_refused_with_what_was_said(self, ready: Driver) -> None:
        self.crash(ready, 1)
        self.crash(ready, 2)
        ((kind, said),) = failures(ready.feed(submit(1, 3)))
        assert kind == "refused"
        assert f"not tried again for {COOLING_SECONDS:.0f} s" in said
        assert said.endswith(CRASH.message)
        run(ready, submit(1, 4, "another"))

    def test_after_a_while_it_is_tried_again(self, ready: Driver) -> None:
        self.crash(ready, 1)
        self.crash(ready, 2)
        ready.now += COOLING_SECONDS
        self.crash(ready, 3)
        run(ready, submit(1, 4))

    @pytest.mark.parametrize("kind", ["timeout", "out-of-memory"])
    def test_what_has_to_be_stopped_counts_too(self, ready: Driver, kind: FailureKind) -> None:
        for number in (1, 2):
            self.crash(ready, number, Failure(kind, "stopped"))
        assert [kind for kind, _ in failures(ready.feed(submit(1, 3)))] == ["refused"]

    def test_a_compile_error_is_an_answer_and_clears_it(self, ready: Driver) -> None:
        self.crash(ready, 1)
        self.crash(ready, 2, Failure("compile-error", "no such type"))
        self.crash(ready, 3)
        run(ready, submit(1, 4))

    def test_a_limit_that_a_client_set_itself_is_not_the_kernels_fault(self, ready: Driver) -> None:
        for number in (1, 2, 3):
            limited = ev.Submitted(ev.RequestId(1, number), USER, "k", "k", "foreground", 1.0, timeout=0.5)
            ready.feed(ev.JobFailed(run(ready, limited), Failure("timeout", "stopped after 0.5 s")))
        run(ready, submit(1, 4))

    def test_another_user_is_not_told(self, ready: Driver) -> None:
        self.crash(ready, 1)
        self.crash(ready, 2)
        ready.forkserver(101, OTHER)
        run(ready, submit(2, 1, domain=OTHER))


class TestSuspects:
    def test_of_several_that_lost_their_forkserver_one_at_a_time_runs_again(self) -> None:
        driver = Driver(slots=4)
        driver.forkserver()
        for number in range(1, 4):
            run(driver, submit(1, number, f"k{number}"))
        driver.feed(ev.ForkserverGone(100, "killed"))
        assert driver.forkserver(101) == [act.Run(1, 101, 600.0)]
        assert run(driver, submit(1, 4, "k4")) == 4, "what is not suspected runs beside it"
        assert act.Run(2, 101, 600.0) in driver.feed(ev.Succeeded(1, 1))

    def test_the_one_that_ends_its_forkserver_is_blamed_and_the_others_are_served(self) -> None:
        driver = Driver(slots=4)
        driver.forkserver()
        for number in range(1, 4):
            run(driver, submit(1, number, f"k{number}"))
        driver.feed(ev.ForkserverGone(100, "killed"))
        driver.forkserver(101)
        ended = driver.feed(ev.ForkserverGone(101, "killed again"))
        ((kind, said),) = failures(ended)
        assert kind == "worker-crashed"
        assert "lost twice while compiling it, the second time alone" in said
        assert act.AskForForkserver(1) in ended, "at once: no pause for what a kernel has done"
        assert driver.forkserver(102) == [act.Run(2, 102, 600.0)]
        assert act.Run(3, 102, 600.0) in driver.feed(ev.Succeeded(2, 1))
        driver.feed(ev.Succeeded(3, 1))
        assert driver.scheduler.idle

    def test_a_suspect_that_nobody_wants_any_more_lets_the_next_have_its_turn(self) -> None:
        driver = Driver(slots=4)
        driver.forkserver()
        for number in (1, 2):
            run(driver, submit(number, 1, f"k{number}"))
        driver.feed(ev.ForkserverGone(100, "killed"), ev.ClientGone(1))
        assert driver.forkserver(101) == [act.Run(2, 101, 600.0)]


class TestTimeLimits:
    def limited(self, number: int, timeout: float | None) -> ev.Submitted:
        return ev.Submitted(ev.RequestId(1, number), USER, "k", "k", "foreground", 1.0, timeout=timeout)

    def test_a_request_may_lower_it_and_not_raise_it(self, ready: Driver) -> None:
        ready.feed(self.limited(1, 5.0))
        assert ready.feed(ev.LookedUp(1, found=False)) == [act.Run(1, 100, 5.0)]
        ((kind, said),) = failures(ready.feed(self.limited(2, 601.0)))
        assert kind == "refused"
        assert said == "a time limit of 601 s was asked for; this daemon takes up to 600 s"

    def test_the_most_patient_of_those_who_wait_counts(self, ready: Driver) -> None:
        ready.feed(self.limited(1, 5.0), self.limited(2, None))
        assert ready.feed(ev.LookedUp(1, found=False)) == [act.Run(1, 100, 600.0)]

    def test_who_joins_later_and_allows_more_has_it_run_again(self, ready: Driver) -> None:
        ready.feed(self.limited(1, 0.5), ev.LookedUp(1, found=False))
        ready.feed(self.limited(2, None), self.limited(3, 0.2))
        ended = ready.feed(ev.JobFailed(1, Failure("timeout", "stopped after 0.5 s", "k")))
        assert [action.request.id for action in ended if isinstance(action, act.Fail)] == [1, 3]
        assert ended[-1] == act.Run(1, 100, 600.0)
        assert act.Answer(ev.RequestId(1, 2), 1, "compiled") in ready.feed(ev.Succeeded(1, 1))

    def test_waiting_for_a_slot_does_not_count(self) -> None:
        driver = Driver(slots=1)
        driver.forkserver()
        first = run(driver, submit(1, 1, "first"))
        driver.feed(self.limited(2, 5.0), ev.LookedUp(2, found=False))
        driver.now += 300.0
        driver.feed(ev.Heard(100), ev.Tick())
        assert act.Run(2, 100, 5.0) in driver.feed(ev.Succeeded(first, 1))


class TestSupervision:
    def wait(self, driver: Driver, seconds: float) -> list[act.Action]:
        driver.now += seconds
        return driver.feed(ev.Tick())

    def test_a_forkserver_at_work_is_asked_for_a_word_and_dropped_without_one(self, ready: Driver) -> None:
        run(ready, submit(1))
        assert self.wait(ready, PING_SECONDS) == [act.Ping(100)]
        ready.feed(ev.Heard(100))
        assert self.wait(ready, PING_SECONDS) == [act.Ping(100)]
        dropped = self.wait(ready, OBEY_SECONDS)
        assert dropped[0] == act.Retire(100, f"it did not answer for {OBEY_SECONDS:.0f} s")
        assert dropped[1:] == [act.AskForForkserver(1)], "its job goes elsewhere"
        assert ready.scheduler.running == 0, "its slot is free"
        assert ready.forkserver(101) == [act.Run(1, 101, 600.0)]

    def test_an_idle_one_is_left_in_peace(self, ready: Driver) -> None:
        ready.feed(ev.Succeeded(run(ready, submit(1)), 1))
        assert self.wait(ready, PING_SECONDS) == []
        assert ready.scheduler.deadline() is None

    def test_one_that_misses_a_kill_order_is_dropped(self, ready: Driver) -> None:
        assert ready.feed(ev.Cancelled(ev.RequestId(1, 1))) == []
        job = run(ready, submit(1))
        assert ready.feed(ev.Cancelled(ev.RequestId(1, 1))) == [act.Kill(job, 100)]
        ready.feed(ev.Heard(100))
        self.wait(ready, PING_SECONDS)
        ready.feed(ev.Heard(100))
        dropped = self.wait(ready, OBEY_SECONDS - PING_SECONDS)
        assert act.Retire(100, "it was to kill a worker, and did not") in dropped
        assert ready.scheduler.running == 0

    def test_one_that_lets_a_job_run_on_is_dropped(self, ready: Driver) -> None:
        ready.feed(ev.Submitted(ev.RequestId(1, 1), USER, "k", "k", "foreground", 1.0, timeout=1.0))
        ready.feed(ev.LookedUp(1, found=False))
        self.wait(ready, PING_SECONDS)
        ready.feed(ev.Heard(100))
        dropped = self.wait(ready, 1.0 + OBEY_SECONDS - PING_SECONDS)
        assert act.Retire(100, "it was to stop k after 1 s, and did not") in dropped


class TestStarting:
    def ask(self, driver: Driver, number: int) -> list[act.Action]:
        """What comes of a new request that needs a forkserver."""
        (looked_up,) = driver.feed(submit(1, number, f"k{number}"))
        assert isinstance(looked_up, act.LookUp)
        return driver.feed(ev.LookedUp(looked_up.job, found=False))

    def test_it_is_asked_for_again_with_pauses_that_double(self) -> None:
        driver = Driver()
        number = 0
        for pause in (0.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
            assert self.ask(driver, number := number + 1) == [act.AskForForkserver(1)]
            failed = failures(driver.feed(ev.StartFailed(1, "no module named triton")))
            assert failed == [("unavailable", "no forkserver could be started: no module named triton")]
            if pause:
                driver.now += pause - 0.1
                assert failures(self.ask(driver, number := number + 1)) == failed, "meanwhile the reason is told"
                driver.now += 0.1

    def test_one_that_does_not_last_is_not_started_in_a_loop(self, ready: Driver) -> None:
        run(ready, submit(1))
        assert ready.feed(ev.ForkserverGone(100, "killed")) == [act.AskForForkserver(1)]
        ready.feed(ev.Attached(101, USER), ev.Ready(101), ev.Succeeded(1, 1))
        ready.feed(ev.ForkserverGone(101, "killed again"))
        ready.feed(submit(1, 2, "later"))
        said = failures(ready.feed(ev.LookedUp(2, found=False)))
        assert said == [("unavailable", "no forkserver could be started: killed again")]
        ready.now += START_SECONDS
        ready.feed(submit(1, 3, "after the pause"))
        assert ready.feed(ev.LookedUp(3, found=False)) == [act.AskForForkserver(1)]

    def test_one_that_dies_while_importing_is_explained_by_who_started_it(self) -> None:
        driver = Driver()
        driver.feed(submit(1), ev.LookedUp(1, found=False))
        driver.feed(ev.Attached(100, USER))
        assert driver.feed(ev.ForkserverGone(100, "its process ended")) == []
        ((_, said),) = failures(driver.feed(ev.StartFailed(1, "Segmentation fault in libtriton")))
        assert said == "no forkserver could be started: Segmentation fault in libtriton"


class TestMemory:
    def test_slots_shrink_and_grow_and_one_is_always_there(self) -> None:
        driver = Driver(slots=8)
        driver.forkserver()
        driver.feed(ev.Memory(room=-3))
        for number in range(1, 5):
            driver.feed(submit(1, number, f"k{number}"), ev.LookedUp(number, found=False))
        assert driver.scheduler.running == 1
        assert driver.scheduler.held_back
        assert "short of memory" in repr(driver.scheduler)
        assert len(driver.feed(ev.Memory(room=2))) == 2
        assert driver.scheduler.running == 3
        driver.feed(ev.Memory(room=8))
        assert driver.scheduler.running == 4
        assert not driver.scheduler.held_back


class TestPriorities:
    def test_who_blocks_on_a_background_request_makes_it_urgent(self) -> None:
        driver = Driver(slots=1)
        driver.forkserver()
        running = run(driver, submit(1, 1, "running"))
        for number in range(2, 12):
            driver.feed(submit(1, number, f"k{number}", priority="background"), ev.LookedUp(number, found=False))
        driver.feed(ev.Promoted(ev.RequestId(1, 11)))
        assert act.Run(11, 100, 600.0) in driver.feed(ev.Succeeded(running, 1))
        assert driver.scheduler.counters()["promoted"] == 1

    def test_to_promote_what_is_answered_or_urgent_is_harmless(self, ready: Driver) -> None:
        assert ready.feed(ev.Promoted(ev.RequestId(7, 7))) == []
        run(ready, submit(1))
        assert ready.feed(ev.Promoted(ev.RequestId(1, 1))) == []
        assert ready.scheduler.counters()["promoted"] == 0

    def test_a_thousand_background_jobs_do_not_delay_one_foreground_job(self) -> None:
        driver = Driver(slots=2)
        driver.forkserver()
        for number in range(1, 1001):
            driver.feed(submit(1, number, f"k{number}", priority="background"), ev.LookedUp(number, found=False))
        driver.feed(submit(2, 1, "urgent"), ev.LookedUp(1001, found=False))
        assert act.Run(1001, 100, 600.0) in driver.feed(ev.Succeeded(1, 1))


class TestCaps:
    def test_requests_over_the_cap_are_refused_until_some_are_answered(
        self, ready: Driver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(requests, "REQUESTS_OF_A_CLIENT", 3)
        for number in range(1, 4):
            ready.feed(submit(1, number, f"k{number}"))
        ((kind, said),) = failures(ready.feed(submit(1, 4, "k4")))
        assert kind == "refused"
        assert "3 requests open" in said
        assert not failures(ready.feed(submit(2, 1, "k5"))), "another client's are its own"
        ready.feed(ev.LookedUp(1, found=True))
        assert not failures(ready.feed(submit(1, 5, "k6")))

    def test_bytes_over_the_cap_are_refused(self, ready: Driver) -> None:
        half = requests.BYTES_OF_A_CLIENT // 2 + 1

        def sized(number: int) -> ev.Submitted:
            return ev.Submitted(ev.RequestId(1, number), USER, f"k{number}", "k", "foreground", 1.0, size=half)

        assert not failures(ready.feed(sized(1)))
        ((kind, said),) = failures(ready.feed(sized(2)))
        assert kind == "refused"
        assert "256 MiB" in said
