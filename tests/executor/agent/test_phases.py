"""When a phase becomes a fact: at once if it is named, at most once per dwell, and the last one always."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from tidegate_executor.attempts.phases import (
    AWAY_NS,
    DWELL_NS,
    PhaseState,
    Speaker,
    away,
    away_due_ns,
    due_ns,
    forget_away,
    gone,
    journal,
    restarted,
    say,
)

T0 = 1_000_000_000_000
MAIN = Speaker(client="m", component="main", replica=0, is_main=True)
SECOND_MAIN = Speaker(client="n", component="main", replica=1, is_main=True)
SIDE = Speaker(client="s", component="sim", replica=0)


def test_a_named_phase_is_a_fact_at_once_and_passing_through_none_is_not() -> None:
    state = say(PhaseState(), MAIN, "sampling", 1, T0)
    assert due_ns(state) == T0
    state = journal(state, T0)
    later = T0 + 10 * DWELL_NS
    state = say(state, MAIN, None, None, later)
    assert due_ns(state) == later + DWELL_NS
    state = say(state, MAIN, "learning", 2, later + 5)
    assert due_ns(state) == later + 5
    assert state.flips == 0


def test_the_main_component_speaks_for_the_member_once_it_has_spoken() -> None:
    state = say(PhaseState(), SIDE, "warmup", None, T0)
    assert state.current == "warmup"
    state = say(state, MAIN, "sampling", None, T0 + 1)
    state = say(state, SIDE, "other", None, T0 + 2)
    assert state.current == "sampling"
    assert state.flips == 1


def test_a_phase_is_left_when_the_last_that_entered_it_has_left() -> None:
    state = say(say(PhaseState(), MAIN, "learning", 1, T0), SECOND_MAIN, "learning", 1, T0 + 1)
    state = say(journal(state, T0), MAIN, None, 1, T0 + DWELL_NS)
    assert (state.current, due_ns(state)) == ("learning", None), "the second computes on"
    state = say(state, SECOND_MAIN, None, 1, T0 + 2 * DWELL_NS)
    assert due_ns(state) == T0 + 3 * DWELL_NS


def test_the_phase_is_that_of_the_newest_that_is_in_one() -> None:
    state = say(say(PhaseState(), MAIN, "sampling", 1, T0), SECOND_MAIN, "learning", 1, T0 + 1)
    assert state.current == "learning"
    assert say(state, SECOND_MAIN, None, 1, T0 + 2).current == "sampling"
    assert say(state, MAIN, None, 1, T0 + 2).current == "learning"


def test_who_exits_or_stays_away_is_in_no_phase() -> None:
    state = say(say(PhaseState(), MAIN, "learning", 1, T0), SECOND_MAIN, "learning", 1, T0)
    state = gone(journal(state, T0), "main", 0, T0 + 1)
    assert state.current == "learning"
    assert gone(state, "main", 1, T0 + 1).current == "default"
    cut = away(state, "n", T0 + 1)
    assert away_due_ns(cut) == T0 + 1 + AWAY_NS
    assert forget_away(cut, T0 + AWAY_NS).current == "learning"
    assert forget_away(cut, T0 + 1 + AWAY_NS).current == "default"
    assert away_due_ns(away(cut, "n", 0)) is None
    assert away_due_ns(restarted(state, T0 + 5)) == T0 + 5 + AWAY_NS, "nobody is connected to an agent that starts"


@given(st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 3 * DWELL_NS)), max_size=40))
def test_facts_keep_the_dwell_and_the_last_phase_wins(said: list[tuple[str | None, int]]) -> None:
    state, now, facts = PhaseState(), T0, []
    last = "default"
    for phase, wait in [*said, (None, 0)][:-1]:
        until = now + wait
        while (due := due_ns(state)) is not None and due <= until:
            state = journal(state, max(due, now))
            facts.append((state.journaled_ns, state.journaled))
        now = until
        state = say(state, MAIN, phase, None, now)
        last = phase or "default"
    if (due := due_ns(state)) is not None:
        state = journal(state, due)
        facts.append((due, state.journaled))
    assert state.journaled == last
    assert all(b[0] - a[0] >= DWELL_NS for a, b in itertools.pairwise(facts))
    assert all(a[1] != b[1] for a, b in itertools.pairwise(facts))
