"""Many clients with more work than there are slots, on virtual time: everybody is answered once, and in turn."""

from benchmarks.scheduler import Simulation


def test_a_thousand_clients_of_ten_users_get_their_share() -> None:
    outcome = Simulation(clients=1000, requests=20_000, users=10, slots=16).run()
    assert outcome.answered == {1: 20_001}
    least, most = outcome.seconds_of_users
    # What jobs take is not known when they start; what they took is charged when they end.
    assert most <= 1.1 * least
    assert outcome.late_waited == 0, "a foreground request of an idle user is the next to start"
