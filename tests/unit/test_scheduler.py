"""The scheduler's rules, one test each; no loop, socket or process."""

import pytest

from compilepool.daemon import actions as act, domains, events as ev, scheduler as s
from compilepool.daemon.jobs import SchedulerError
from compilepool.daemon.owner import HOST, Owner
from compilepool.protocol.errors import Failure

USER = ev.Domain(Owner(HOST, 1000), "toolchain")
OTHER = ev.Domain(Owner(HOST, 1001), "toolchain")


class Driver:
    """A scheduler with its invariants checked after each event."""

    def __init__(self, slots: int = 2) -> None:
        self.scheduler = s.Scheduler(slots)
        self.now = 0.0

    def feed(self, *events: ev.Event) -> list[act.Action]:
        actions: list[act.Action] = []
        for event in events:
            actions += self.scheduler.handle(event, self.now)
            self.scheduler.check_invariants()
        return actions

    def forkserver(self, number: int = 100, domain: ev.Domain = USER) -> list[act.Action]:
        """Have one attached and ready; what comes of its being ready."""
        assert self.feed(ev.Attached(number, domain)) == [act.Adopt(number)]
        return self.feed(ev.Ready(number))


def submit(
    client: int, number: int = 1, key: str = "k", domain: ev.Domain = USER, priority: str = "foreground"
) -> ev.Submitted:
    return ev.Submitted(ev.RequestId(client, number), domain, key, f"kernel_{key}", priority, 1.0)  # type: ignore[arg-type]


@pytest.fixture
def ready() -> Driver:
    """A scheduler of two slots whose user has a forkserver."""
    driver = Driver()
    driver.forkserver()
    return driver


def test_a_known_key_is_answered_from_the_store(ready: Driver) -> None:
    assert ready.feed(submit(1)) == [act.LookUp(1, ev.RequestId(1, 1))]
    assert ready.feed(ev.LookedUp(1, found=True)) == [act.Answer(ev.RequestId(1, 1), 1, "store"), act.Forget(1)]
    assert ready.scheduler.idle


def test_an_unknown_key_runs_and_is_answered(ready: Driver) -> None:
    ready.feed(submit(1))
    assert ready.feed(ev.LookedUp(1, found=False)) == [act.Run(1, 100, 600.0)]
    assert repr(ready.scheduler) == "<Scheduler [jobs: 1 running | slots: 1/2 | forkservers: 1]>"
    assert ready.feed(ev.Succeeded(1, units=3)) == [act.Answer(ev.RequestId(1, 1), 1, "compiled"), act.Forget(1)]
    assert ready.scheduler.counters()["units_compiled"] == 3


@pytest.mark.parametrize("looked_up", [False, True])
def test_one_compile_for_a_key_however_many_ask(ready: Driver, looked_up: bool) -> None:
    ready.feed(submit(1))
    if looked_up:
        ready.feed(ev.LookedUp(1, found=False))
    assert ready.feed(submit(2), submit(3)) == []
    if not looked_up:
        ready.feed(ev.LookedUp(1, found=False))
    answers = ready.feed(ev.Succeeded(1, units=1))
    assert answers == [
        act.Answer(ev.RequestId(1, 1), 1, "compiled"),
        act.Answer(ev.RequestId(2, 1), 1, "joined"),
        act.Answer(ev.RequestId(3, 1), 1, "joined"),
        act.Forget(1),
    ]


def test_users_do_not_share(ready: Driver) -> None:
    ready.forkserver(200, OTHER)
    ready.feed(submit(1), submit(2, domain=OTHER))
    runs = ready.feed(ev.LookedUp(1, found=False), ev.LookedUp(2, found=False))
    assert runs == [act.Run(1, 100, 600.0), act.Run(2, 200, 600.0)]


def test_no_more_run_than_there_are_slots(ready: Driver) -> None:
    for number in range(1, 4):
        ready.feed(submit(1, number, key=str(number)), ev.LookedUp(number, found=False))
    assert (ready.scheduler.running, ready.scheduler.queued) == (2, 1)
    assert act.Run(3, 100, 600.0) in ready.feed(ev.JobFailed(1, Failure("compile-error", "no", "kernel_1")))


def test_a_failure_reaches_everybody_who_asked_and_is_not_kept(ready: Driver) -> None:
    failure = Failure("compile-error", "no", "kernel_k")
    ready.feed(submit(1), submit(2), ev.LookedUp(1, found=False))
    assert ready.feed(ev.JobFailed(1, failure)) == [
        act.Fail(ev.RequestId(1, 1), failure),
        act.Fail(ev.RequestId(2, 1), failure),
        act.Forget(1),
    ]
    assert ready.feed(submit(1, 2)) == [act.LookUp(2, ev.RequestId(1, 2))]


class TestForkservers:
    def test_one_of_eight_ranks_is_asked_to_start_it(self) -> None:
        driver = Driver()
        asked = []
        for rank in range(8):
            asked += driver.feed(submit(rank, key=str(rank)), ev.LookedUp(rank + 1, found=False))
        assert [a for a in asked if isinstance(a, act.AskForForkserver)] == [act.AskForForkserver(0)]
        assert len([a for a in driver.forkserver() if isinstance(a, act.Run)]) == 2

    def test_the_next_client_is_asked_when_the_first_fails(self) -> None:
        driver = Driver()
        driver.feed(submit(1), submit(2), ev.LookedUp(1, found=False))
        assert driver.feed(ev.StartFailed(1, "no python")) == [act.AskForForkserver(2)]
        given_up = driver.feed(ev.StartFailed(2, "no torch"))
        failure = Failure("unavailable", "no forkserver could be started: no torch", "kernel_k")
        assert given_up == [act.Fail(ev.RequestId(1, 1), failure), act.Fail(ev.RequestId(2, 1), failure), act.Forget(1)]

    def test_the_next_client_is_asked_when_the_first_leaves(self) -> None:
        driver = Driver()
        driver.feed(submit(1), submit(2), ev.LookedUp(1, found=False))
        assert driver.feed(ev.ClientGone(1)) == [act.AskForForkserver(2)]

    def test_one_that_never_attaches_is_given_up(self) -> None:
        driver = Driver()
        driver.feed(submit(1), ev.LookedUp(1, found=False))
        assert driver.scheduler.deadline() == domains.START_SECONDS
        driver.now = domains.START_SECONDS
        (fail, forget) = driver.feed(ev.Tick())
        assert isinstance(fail, act.Fail)
        assert "none attached" in fail.failure.message
        assert forget == act.Forget(1)
        assert driver.scheduler.deadline() is None

    def test_one_that_is_never_ready_is_retired(self) -> None:
        driver = Driver()
        driver.feed(submit(1), ev.LookedUp(1, found=False), ev.Attached(100, USER))
        driver.now = domains.WARM_SECONDS
        retire, fail, _ = driver.feed(ev.Tick())
        assert isinstance(retire, act.Retire)
        assert isinstance(fail, act.Fail)

    def test_after_giving_up_the_next_submission_starts_afresh(self) -> None:
        driver = Driver()
        driver.feed(submit(1), ev.LookedUp(1, found=False), ev.StartFailed(1, "no"))
        assert driver.feed(submit(1, 2), ev.LookedUp(2, found=False))[-1] == act.AskForForkserver(1)

    def test_a_second_one_is_retired(self) -> None:
        driver = Driver()
        driver.forkserver()
        (retire,) = driver.feed(ev.Attached(101, USER))
        assert isinstance(retire, act.Retire)
        assert driver.feed(ev.ForkserverGone(101, "retired")) == []

    def test_a_lost_one_costs_each_running_job_one_retry(self, ready: Driver) -> None:
        ready.feed(submit(1), ev.LookedUp(1, found=False))
        assert ready.feed(ev.ForkserverGone(100, "killed")) == [act.AskForForkserver(1)]
        assert act.Run(1, 101, 600.0) in ready.forkserver(101)
        fail, forget = ready.feed(ev.ForkserverGone(101, "killed again"))
        assert isinstance(fail, act.Fail)
        assert fail.failure.kind == "worker-crashed"
        assert "killed again" in fail.failure.message
        assert forget == act.Forget(1)

    def test_queued_jobs_wait_for_the_next_one_at_no_cost(self) -> None:
        driver = Driver(slots=1)
        driver.forkserver()
        for number in (1, 2):
            driver.feed(submit(1, number, key=str(number)), ev.LookedUp(number, found=False))
        driver.feed(ev.ForkserverGone(100, "killed"))
        assert driver.scheduler.waiting == 2
        assert driver.forkserver(101) == [act.Run(1, 101, 600.0)]

    def test_an_idle_one_may_leave(self, ready: Driver) -> None:
        assert ready.feed(ev.ForkserverGone(100, "idle")) == []
        assert ready.feed(submit(1), ev.LookedUp(1, found=False))[-1] == act.AskForForkserver(1)


class TestCancelling:
    def test_the_last_waiter_stops_the_worker(self, ready: Driver) -> None:
        ready.feed(submit(1), submit(2), ev.LookedUp(1, found=False))
        assert ready.feed(ev.Cancelled(ev.RequestId(1, 1))) == []
        assert ready.feed(ev.Cancelled(ev.RequestId(2, 1))) == [act.Kill(1, 100)]
        assert ready.scheduler.running == 1
        assert ready.feed(ev.JobFailed(1, Failure("cancelled", ""))) == [act.Forget(1)]
        assert ready.scheduler.running == 0

    def test_nobody_joins_a_job_that_is_being_killed(self, ready: Driver) -> None:
        ready.feed(submit(1), ev.LookedUp(1, found=False), ev.Cancelled(ev.RequestId(1, 1)))
        assert ready.feed(submit(1, 2)) == [act.LookUp(2, ev.RequestId(1, 2))]

    @pytest.mark.parametrize("looked_up", [False, True])
    def test_before_it_runs_it_is_forgotten_at_once(self, looked_up: bool) -> None:
        driver = Driver()
        driver.feed(submit(1))
        if looked_up:
            driver.feed(ev.LookedUp(1, found=False))
        assert driver.feed(ev.Cancelled(ev.RequestId(1, 1))) == [act.Forget(1)]
        assert driver.feed(ev.LookedUp(1, found=True)) == []

    def test_late_is_harmless(self, ready: Driver) -> None:
        ready.feed(submit(1), ev.LookedUp(1, found=False), ev.Succeeded(1, units=1))
        assert ready.feed(ev.Cancelled(ev.RequestId(1, 1))) == []

    def test_a_client_that_leaves_cancels_all_of_its_own(self, ready: Driver) -> None:
        for number in range(1, 4):
            ready.feed(submit(1, number, key=str(number)), ev.LookedUp(number, found=False))
        assert ready.feed(ev.ClientGone(1)) == [act.Kill(1, 100), act.Kill(2, 100), act.Forget(3)]

    def test_a_job_takes_the_turn_of_who_still_waits(self) -> None:
        driver = Driver(slots=1)
        driver.forkserver()
        driver.feed(submit(9, key="first"), ev.LookedUp(1, found=False))
        driver.feed(submit(1, 1, "shared", priority="background"), ev.LookedUp(2, found=False))
        driver.feed(submit(1, 2, "other"), ev.LookedUp(3, found=False))
        driver.feed(submit(2, 1, "shared"))
        assert act.Run(3, 100, 600.0) in driver.feed(ev.Succeeded(1, units=1))
        driver.feed(ev.Cancelled(ev.RequestId(2, 1)), submit(1, 4, "late"), ev.LookedUp(4, found=False))
        assert act.Run(4, 100, 600.0) in driver.feed(ev.Succeeded(3, units=1))


class TestDraining:
    def test_hands_back_what_does_not_run(self) -> None:
        driver = Driver(slots=1)
        driver.forkserver()
        for number in (1, 2, 3):
            driver.feed(submit(1, number, key=str(number)))
        driver.feed(ev.LookedUp(1, found=False), ev.LookedUp(2, found=False))
        failed = [a.request.id for a in driver.feed(ev.Drain()) if isinstance(a, act.Fail)]
        assert failed == [2, 3]
        assert driver.feed(ev.Succeeded(1, units=1))[0] == act.Answer(ev.RequestId(1, 1), 1, "compiled")
        assert driver.scheduler.idle

    def test_refuses_what_comes_later_as_unavailable(self, ready: Driver) -> None:
        ready.feed(ev.Drain())
        (fail,) = ready.feed(submit(1))
        assert isinstance(fail, act.Fail)
        assert fail.failure.kind == "unavailable"

    def test_now_gives_up_what_runs(self, ready: Driver) -> None:
        ready.feed(submit(1), ev.LookedUp(1, found=False))
        fail, kill = ready.feed(ev.Drain(now=True))
        assert isinstance(fail, act.Fail)
        assert kill == act.Kill(1, 100)

    def test_a_forkserver_lost_meanwhile_is_not_replaced(self, ready: Driver) -> None:
        ready.feed(submit(1), ev.LookedUp(1, found=False), ev.Drain())
        fail, _ = ready.feed(ev.ForkserverGone(100, "killed"))
        assert isinstance(fail, act.Fail)


def test_an_illegal_event_is_a_named_error(ready: Driver) -> None:
    with pytest.raises(SchedulerError, match="job 5 is not running"):
        ready.feed(ev.Succeeded(5, units=1))
    ready.feed(submit(1))
    with pytest.raises(SchedulerError, match="in flight"):
        ready.feed(submit(1))


def run_one(driver: Driver, number: int = 1, *, expected: float = 4.0) -> int:
    """Have a kernel of this length run; the job's number."""
    submitted = ev.Submitted(ev.RequestId(1, number), USER, f"k{number}", f"kernel_{number}", "foreground", expected)
    (look_up,) = driver.feed(submitted)
    assert isinstance(look_up, act.LookUp)
    driver.feed(ev.LookedUp(look_up.job, found=False))
    return look_up.job


def test_a_kernel_of_many_configs_is_assisted_while_slots_are_free() -> None:
    driver = Driver(slots=4)
    driver.forkserver()
    job = run_one(driver)
    assert driver.feed(ev.Progress(job, unclaimed=5)) == [act.Assist(job, 100)] * 3
    assert driver.scheduler.running == 4
    assert driver.feed(ev.Progress(job, unclaimed=2)) == []
    assert driver.feed(ev.Assisted(job, 100)) == [act.Assist(job, 100)]
    assert driver.feed(ev.Progress(job, unclaimed=0), ev.Assisted(job, 100)) == []


def test_what_is_queued_gets_a_slot_before_an_assistant_does() -> None:
    driver = Driver(slots=2)
    driver.forkserver()
    first, second = run_one(driver, 1), run_one(driver, 2)
    waiting = run_one(driver, 3)
    assert driver.feed(ev.Progress(first, unclaimed=9)) == []
    assert act.Run(waiting, 100, 600.0) in driver.feed(ev.Succeeded(second, 1))
    assert act.Assist(first, 100) in driver.feed(ev.Succeeded(waiting, 1))


def test_who_has_most_left_is_assisted_first() -> None:
    driver = Driver(slots=3)
    driver.forkserver()
    short, long = run_one(driver, 1, expected=1.0), run_one(driver, 2, expected=9.0)
    third = run_one(driver, 3)
    driver.feed(ev.Progress(short, unclaimed=3), ev.Progress(long, unclaimed=3))
    assert act.Assist(long, 100) in driver.feed(ev.Succeeded(third, 1))


def test_a_short_kernel_is_not_split() -> None:
    driver = Driver(slots=4)
    driver.forkserver()
    job = run_one(driver, expected=0.1)
    assert driver.feed(ev.Progress(job, unclaimed=3)) == []


def test_assistants_hold_their_slots_until_they_have_ended_and_go_with_their_forkserver() -> None:
    driver = Driver(slots=2)
    driver.forkserver()
    job = run_one(driver)
    driver.feed(ev.Progress(job, unclaimed=5))
    driver.feed(ev.Succeeded(job, 6))
    assert driver.scheduler.running == 1
    driver.feed(ev.ForkserverGone(100, "killed"), ev.Assisted(job, 100))
    assert driver.scheduler.running == 0


def test_no_assistant_is_sent_while_draining() -> None:
    driver = Driver(slots=4)
    driver.forkserver()
    job = run_one(driver)
    driver.feed(ev.Drain())
    assert driver.feed(ev.Progress(job, unclaimed=5)) == []


def probe(client: int) -> ev.Submitted:
    return ev.Submitted(ev.RequestId(client, 9), USER, "probe", "probe", "foreground", 0.0, probe=True)


def test_a_probe_has_a_forkserver_started_and_is_answered_when_it_is_ready() -> None:
    driver = Driver()
    driver.feed(probe(1), probe(2))
    assert driver.feed(ev.LookedUp(1, found=False)) == [act.AskForForkserver(1)]
    driver.feed(ev.Attached(100, USER))
    answers = driver.feed(ev.Ready(100))
    assert [action.request.client for action in answers if isinstance(action, act.Answer)] == [1, 2]
    driver.feed(probe(3))
    assert act.Answer(ev.RequestId(3, 9), 2, "compiled") in driver.feed(ev.LookedUp(2, found=False))
    assert driver.scheduler.idle
    assert driver.scheduler.counters()["probes"] == 3


def test_a_request_for_the_best_config_joins_one_for_all_and_not_the_other_way_round(ready: Driver) -> None:
    def best(number: int) -> ev.Submitted:
        return ev.Submitted(ev.RequestId(1, number), USER, "best", "kernel", "foreground", 1.0, wider="all")

    ready.feed(submit(1, 1, key="all"))
    assert ready.feed(best(2)) == []
    ready.feed(ev.LookedUp(1, found=False))
    ready.feed(ev.Succeeded(1, 5))
    assert ready.feed(best(3)) == [act.LookUp(2, ev.RequestId(1, 3))]
    assert ready.feed(submit(1, 4, key="all")) == [act.LookUp(3, ev.RequestId(1, 4))]
