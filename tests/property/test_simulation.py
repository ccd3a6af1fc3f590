"""Many clients with more work than there are slots, on virtual time: everybody is answered once, and in turn."""

from benchmarks.scheduler import Simulation


def test_a_thousand_clients_of_ten_users_get_their_share() -> None:
    outcome = Simulation(clients=1000, requests=20_000, users=10, slots=16).run()
    assert outcome.answered == {1: 20_001}
    fewest, most = outcome.starts_of_users
    assert most - fewest <= 1
    fewest, most = outcome.starts_of_clients
    # What another asked for first is not their own start.
    assert most - fewest <= 4
    assert outcome.late_waited == 0, "a foreground request of an idle user is the next to start"
