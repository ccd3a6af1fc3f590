from compilepool.daemon.fairqueue import FairQueue, Place
from compilepool.daemon.owner import HOST, Owner


def place(client: int, expected: float = 1.0, uid: int = 1000, *, background: bool = False) -> Place:
    return Place("background" if background else "foreground", Owner(HOST, uid), client, expected)


def drain(queue: FairQueue) -> list[int]:
    return list(iter(queue.pop, None))


def test_the_longest_of_a_client_comes_first() -> None:
    queue = FairQueue()
    for job, expected in enumerate([1.0, 5.0, 3.0]):
        queue.push(job, place(1, expected))
    assert drain(queue) == [1, 2, 0]


def test_clients_take_turns() -> None:
    queue = FairQueue()
    for job in range(3):
        queue.push(job, place(1, 9.0 - job))
        queue.push(10 + job, place(2, 1.0 - job))
    assert drain(queue) == [0, 10, 1, 11, 2, 12]


def test_users_take_turns_however_many_clients_they_have() -> None:
    queue = FairQueue()
    for job in range(4):
        queue.push(job, place(client=job, uid=1))
    queue.push(10, place(client=90, uid=2))
    queue.push(11, place(client=90, uid=2))
    assert drain(queue) == [0, 10, 1, 11, 2, 3]


def test_foreground_goes_before_any_background() -> None:
    queue = FairQueue()
    for job in range(3):
        queue.push(job, place(1, 9.0, background=True))
    queue.push(5, place(2, 0.1))
    assert queue.pop() == 5


def test_a_removed_job_never_comes() -> None:
    queue = FairQueue()
    queue.push(1, place(1))
    queue.push(2, place(1))
    queue.remove(1)
    queue.remove(77)
    assert len(queue) == 1
    assert drain(queue) == [2]


def test_a_job_moves_to_its_new_place() -> None:
    queue = FairQueue()
    queue.push(1, place(1, background=True))
    queue.push(2, place(1))
    queue.push(1, place(1, expected=9.0))
    assert drain(queue) == [1, 2]
    assert repr(queue) == "<FairQueue [foreground: 0, background: 0]>"


def test_owners_take_turns_by_what_they_have_used_and_not_by_starts() -> None:
    queue = FairQueue()
    for job in range(4):
        queue.push(job, place(client=1, uid=1))
        queue.push(10 + job, place(client=2, uid=2))
    first: list[bool] = []
    while len(first) < 6 and (taken := queue.pop()) is not None:
        first.append(taken < 10)
        # The first one's take four times as long as was expected.
        queue.charge(Owner(HOST, 1 if first[-1] else 2), 3.0 if first[-1] else 0.0)
    assert first == [True, False, False, False, False, True]


def test_who_comes_late_begins_where_the_others_are() -> None:
    queue = FairQueue()
    for job in range(100):
        queue.push(job, place(client=1, uid=1))
    for _ in range(50):
        queue.pop()
    for job in range(200, 300):
        queue.push(job, place(client=2, uid=2))
    taken = [queue.pop() for _ in range(20)]
    assert 9 <= sum(job is not None and job >= 200 for job in taken) <= 11


def test_who_is_barred_is_passed_over_and_keeps_the_turn() -> None:
    queue = FairQueue()
    queue.push(1, place(client=1, uid=1))
    queue.push(2, place(client=2, uid=2))
    assert queue.pop(lambda owner: owner.uid == 1) == 2
    assert queue.pop(lambda owner: owner.uid == 1) is None
    assert queue.pop() == 1
