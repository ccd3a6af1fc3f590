"""What is due, in order; what was replaced or cleared is not."""

from compilepool.daemon.deadlines import Deadlines


def test_the_earliest_comes_first_and_once() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for key, moment in (("late", 3.0), ("early", 1.0), ("later", 4.0)):
        deadlines.set(key, moment)
    assert deadlines.next() == 1.0
    assert list(deadlines.due(3.0)) == ["early", "late"]
    assert list(deadlines.due(3.0)) == []
    assert deadlines.next() == 4.0
    assert "later" in deadlines


def test_what_is_set_anew_is_due_then_only() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("moved", 1.0)
    deadlines.set("moved", 5.0)
    deadlines.set("cleared", 2.0)
    deadlines.clear("cleared")
    assert list(deadlines.due(4.0)) == []
    assert list(deadlines.due(5.0)) == ["moved"]
    assert deadlines.next() is None
    assert len(deadlines) == 0
