"""Which phase a member is in, and when a change of it becomes a fact.

A named phase is a fact at once, unless the last fact is younger than the minimum dwell: then when that is over, and
only the phase that stands then. Being in no phase (`default`) must last for the dwell, because code that goes from one
phase to the next passes through it. Flips that came and went are counted, not journaled.

Several processes may speak for a member. It has left a phase when the last of those that entered it has left, has
exited, or is away for good: until then what the phase was given is in use.
"""

from __future__ import annotations

import msgspec
from tidegate_events.spec import DEFAULT_PHASE

DWELL_NS = 200_000_000
AWAY_NS = 30_000_000_000
"""How long a process in a phase may be away (its connection is cut, the agent starts again) until it counts as gone."""
INSIDE_MAX = 256

_replace = msgspec.structs.replace


class Speaker(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The process that says its phase; `is_main`: it is of the main component."""

    client: str
    component: str
    replica: int
    is_main: bool = False


class Inside(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One process is in a phase; `away_ns`: since when it is not connected."""

    speaker: Speaker
    phase: str
    away_ns: int = 0


class PhaseState(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """`journaled` is the newest fact, `current` what the code said last; `by_main`: the main component has spoken.

    `inside` are the processes that are in a phase, the newest last.
    """

    journaled: str = DEFAULT_PHASE
    journaled_ns: int = 0
    current: str = DEFAULT_PHASE
    current_ns: int = 0
    step: int | None = None
    by_main: bool = False
    flips: int = 0
    inside: tuple[Inside, ...] = ()


def say(state: PhaseState, speaker: Speaker, phase: str | None, step: int | None, now_ns: int) -> PhaseState:
    """Return the state after a process said its phase.

    The main component speaks for the member; until it has, every component may.
    """
    if state.by_main and not speaker.is_main:
        return state
    by_main = state.by_main or speaker.is_main
    others = (each for each in state.inside if each.speaker.client != speaker.client)
    kept = [each for each in others if each.speaker.is_main or not by_main]
    if phase is not None and phase != DEFAULT_PHASE:
        kept.append(Inside(speaker=speaker, phase=phase))
    return _moved(_replace(state, by_main=by_main), tuple(kept[-INSIDE_MAX:]), step, now_ns)


def gone(state: PhaseState, component: str, replica: int, now_ns: int) -> PhaseState:
    """Return the state after a replica has exited."""
    place = (component, replica)
    return _left(state, tuple(e for e in state.inside if (e.speaker.component, e.speaker.replica) != place), now_ns)


def away(state: PhaseState, client: str, since_ns: int) -> PhaseState:
    """Note since when a process is not connected; 0: it is."""
    inside = tuple(_replace(e, away_ns=since_ns) if e.speaker.client == client else e for e in state.inside)
    return state if inside == state.inside else _replace(state, inside=inside)


def restarted(state: PhaseState, now_ns: int) -> PhaseState:
    """The agent has started again: nobody is connected yet."""
    return _replace(state, inside=tuple(_replace(e, away_ns=e.away_ns or now_ns) for e in state.inside))


def away_due_ns(state: PhaseState) -> int | None:
    """Return when the first of those that are away counts as gone."""
    return min((each.away_ns + AWAY_NS for each in state.inside if each.away_ns), default=None)


def forget_away(state: PhaseState, now_ns: int) -> PhaseState:
    """Return the state without those that have been away for too long."""
    return _left(state, tuple(e for e in state.inside if not e.away_ns or e.away_ns + AWAY_NS > now_ns), now_ns)


def is_full(state: PhaseState) -> bool:
    """Say whether no further process may be in a phase."""
    return len(state.inside) >= INSIDE_MAX


def _left(state: PhaseState, inside: tuple[Inside, ...], now_ns: int) -> PhaseState:
    return state if len(inside) == len(state.inside) else _moved(state, inside, state.step, now_ns)


def _moved(state: PhaseState, inside: tuple[Inside, ...], step: int | None, now_ns: int) -> PhaseState:
    """Return the state with these inside: the phase is that of the newest of them."""
    state = _replace(state, inside=inside)
    named = inside[-1].phase if inside else DEFAULT_PHASE
    if named == state.current:
        return state
    dropped = state.current not in (state.journaled, DEFAULT_PHASE)
    return _replace(state, current=named, current_ns=now_ns, step=step, flips=state.flips + int(dropped))


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
    return _replace(state, journaled=state.current, journaled_ns=now_ns)
