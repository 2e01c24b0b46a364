"""When a phase becomes a fact: at once if it is named, at most once per dwell, and the last one always."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from tidegate_executor.attempts.phases import DWELL_NS, PhaseState, due_ns, journal, say

T0 = 1_000_000_000_000


def test_a_named_phase_is_a_fact_at_once_and_passing_through_none_is_not() -> None:
    state = say(PhaseState(), "sampling", 1, T0, is_main=True)
    assert due_ns(state) == T0
    state = journal(state, T0)
    later = T0 + 10 * DWELL_NS
    state = say(state, None, None, later, is_main=True)
    assert due_ns(state) == later + DWELL_NS
    state = say(state, "learning", 2, later + 5, is_main=True)
    assert due_ns(state) == later + 5
    assert state.flips == 0


def test_the_main_component_speaks_for_the_member_once_it_has_spoken() -> None:
    state = say(PhaseState(), "warmup", None, T0, is_main=False)
    assert state.current == "warmup"
    state = say(state, "sampling", None, T0 + 1, is_main=True)
    state = say(state, "other", None, T0 + 2, is_main=False)
    assert state.current == "sampling"
    assert state.flips == 1


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
        state = say(state, phase, None, now, is_main=True)
        last = phase or "default"
    if (due := due_ns(state)) is not None:
        state = journal(state, due)
        facts.append((due, state.journaled))
    assert state.journaled == last
    assert all(b[0] - a[0] >= DWELL_NS for a, b in itertools.pairwise(facts))
    assert all(a[1] != b[1] for a, b in itertools.pairwise(facts))
