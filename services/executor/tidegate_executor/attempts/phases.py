"""Which phase a member is in, and when a change of it becomes a fact.

A named phase is a fact at once, unless the last fact is younger than the minimum dwell: then when that is over, and
only the phase that stands then. Being in no phase (`default`) must last for the dwell, because code that goes from one
phase to the next passes through it. Flips that came and went are counted, not journaled.
"""

from __future__ import annotations

import msgspec
from tidegate_events.spec import DEFAULT_PHASE

DWELL_NS = 200_000_000


class PhaseState(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """`journaled` is the newest fact, `current` what the code said last; `by_main`: the main component has spoken."""

    journaled: str = DEFAULT_PHASE
    journaled_ns: int = 0
    current: str = DEFAULT_PHASE
    current_ns: int = 0
    step: int | None = None
    by_main: bool = False
    flips: int = 0


def say(state: PhaseState, phase: str | None, step: int | None, now_ns: int, *, is_main: bool) -> PhaseState:
    """Return the state after a process said its phase.

    The main component speaks for the member; until it has, every component may.
    """
    if state.by_main and not is_main:
        return state
    named = phase or DEFAULT_PHASE
    by_main = state.by_main or is_main
    if named == state.current:
        return msgspec.structs.replace(state, by_main=by_main)
    dropped = state.current not in (state.journaled, DEFAULT_PHASE)
    return msgspec.structs.replace(
        state, current=named, current_ns=now_ns, step=step, by_main=by_main, flips=state.flips + int(dropped)
    )


def due_ns(state: PhaseState) -> int | None:
    """Return when `current` becomes a fact; None when it is one."""
    if state.current == state.journaled:
        return None
    after_last = state.journaled_ns + DWELL_NS
    if state.current == DEFAULT_PHASE:
        return max(after_last, state.current_ns + DWELL_NS)
    return max(after_last, state.current_ns)


def journal(state: PhaseState, now_ns: int) -> PhaseState:
    """Return the state after `current` was put as a fact."""
    return msgspec.structs.replace(state, journaled=state.current, journaled_ns=now_ns)
