"""A pass as a scheduler that has just begun makes it: what earlier ones tried tells only when to look again."""

from __future__ import annotations

from tidegate_scheduler.decide import Pass, decide
from tidegate_scheduler.policy.elastic.at_rest import AtRest
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.state import State


def decide_afresh(state: State, now_ns: int) -> Pass:
    """Return the pass, and hold that who remembers decides alike, gives the same reasons, and looks again no sooner."""
    if not (isinstance(state.derived, Index) and len(state.derived.settling.at_rest)):
        return decide(state, now_ns)
    remembering = decide(state, now_ns)
    state.derived.settling.at_rest = AtRest()
    found = decide(state, now_ns)
    assert remembering.events == found.events
    assert remembering.waiting == found.waiting
    if found.wake_at_ns != remembering.wake_at_ns:
        assert found.wake_at_ns is not None, "who begins now looks again for whom it tried nothing yet"
        assert remembering.wake_at_ns is None or remembering.wake_at_ns > found.wake_at_ns
    return found
