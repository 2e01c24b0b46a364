"""The agenda: in the order of time, then of putting down; what is cancelled does not happen."""

from __future__ import annotations

from tidegate_scheduler.simulator.agenda import Act, Agenda


def noting(seen: list[str], name: str) -> Act:
    return lambda at_ns: seen.append(f"{name}@{at_ns}")


def all_due(agenda: Agenda, now_ns: int) -> None:
    for act in agenda.due(now_ns):
        act(now_ns)


def test_what_was_put_down_first_comes_first_at_one_time() -> None:
    agenda, seen = Agenda(), list[str]()
    for at_ns, name in ((5, "c"), (3, "a"), (5, "d"), (3, "b"), (9, "e")):
        agenda.at(at_ns, noting(seen, name))
    assert agenda.next_ns == 3
    all_due(agenda, 5)
    assert seen == ["a@5", "b@5", "c@5", "d@5"]
    assert (agenda.next_ns, agenda.pending) == (9, 1)


def test_what_is_put_down_for_now_meanwhile_happens_too() -> None:
    agenda, seen = Agenda(), list[str]()

    def first(at_ns: int) -> None:
        agenda.at(at_ns, noting(seen, "second"))
        seen.append("first")

    agenda.at(1, first)
    all_due(agenda, 1)
    assert seen == ["first", "second@1"]


def test_what_is_cancelled_does_not_happen_and_is_not_waited_for() -> None:
    agenda, seen = Agenda(), list[str]()
    one, two = agenda.at(1, noting(seen, "one")), agenda.at(2, noting(seen, "two"))
    agenda.cancel(one)
    agenda.cancel(one)
    agenda.cancel(None)
    assert (agenda.next_ns, agenda.pending) == (2, 1)
    all_due(agenda, 2)
    agenda.cancel(two)  # it has happened
    assert (seen, agenda.next_ns, agenda.pending) == (["two@2"], None, 0)


def test_the_background_goes_on_but_nobody_waits_for_it() -> None:
    agenda, seen = Agenda(), list[str]()
    entry = agenda.at(1, noting(seen, "behind"), background=True)
    assert (agenda.next_ns, agenda.pending) == (1, 0)
    agenda.cancel(entry)
    assert (agenda.next_ns, agenda.pending) == (None, 0)
