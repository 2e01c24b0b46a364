"""When a process may enter the phase that it asks for, and what the scheduler is told of that. Pure.

A grant is an order that names the phase, that was decided after the ask was in the journal (an order on its way may
name an earlier grant, long given back), and whose limits hold. Without a fact goes only who comes back to the phase
that the newest fact names, before it was one that it had been left.

Processes that speak for the member are in one phase at a time: who asks for another waits, and it is no fact that it
does, until the others have left theirs. Who was answered counts as inside.
"""

from __future__ import annotations

import msgspec
from tidegate_events.spec import DEFAULT_PHASE

from tidegate_executor.attempts import asks, phases
from tidegate_executor.attempts.asks import Ask
from tidegate_executor.attempts.state import AttemptState

_replace = msgspec.structs.replace


def entitled(state: AttemptState) -> tuple[Ask, ...]:
    """Return the asks that are to be answered now."""
    if state.stage != "running" or state.stop is not None or state.failure is not None:
        return ()
    leading = asks.leading(state.asks, state.phase.by_main)
    others = tuple(each for each in state.asks.waiting if each not in leading)
    if not leading or not _may_enter(state, leading[0].phase):
        return (*others, *(each for each in leading if each.answered))
    return (*others, *(each for each in leading if each.answered or each.phase == leading[0].phase))


def is_entering(state: AttemptState) -> bool:
    """Say whether the member is between two phases, and will be in the next one as soon as its process goes on."""
    return any(each in asks.leading(state.asks, state.phase.by_main) for each in entitled(state))


def is_inside(state: AttemptState, *, but: str = "") -> bool:
    """Say whether a process that speaks for the member is in a phase other than `but`, or was told to enter it."""
    leading = asks.leading(state.asks, state.phase.by_main)
    only_main = any(each.is_main for each in leading)
    inside = [each.phase for each in state.phase.inside if each.speaker.is_main or not only_main]
    return any(phase != but for phase in (*inside, *(each.phase for each in leading if each.answered)))


def to_tell(state: AttemptState) -> str | None:
    """Return the phase of which it is to become a fact that it is asked for ("": none is), None where it is one."""
    told = state.asks.told
    if told and state.phase.current == told:
        return None  # it has entered: that becomes a fact
    leading = asks.leading(state.asks, state.phase.by_main)
    wanted = leading[0].phase if leading else ""
    if wanted == state.phase.journaled or is_inside(state, but=wanted):
        wanted = ""  # it comes back, or waits until those who are in it have left
    return wanted if wanted != told else None


def limits_hold(state: AttemptState) -> bool:
    """Say whether the kernel holds the limits that the newest order asks for, and that was told.

    More memory than it asks for will do, where that is told too: who waits for a phase could never give it back.
    """
    asked = {quota.component: quota for quota in state.quotas_asked}
    return all(asked.get(quota.component) == quota or quota in state.shrinks_refused for quota in state.quotas_wanted)


def _may_enter(state: AttemptState, phase: str) -> bool:
    heard = state.order_seq > 0 and 0 <= state.asks.told_seq <= state.order_seq
    if not heard or not limits_hold(state) or is_inside(state, but=phase):
        return False
    if state.phase.journaled == phase:
        return state.asks.told == "" and state.granted in ("", phase) and not state.hand_back_ns
    return state.asks.told == state.granted == phase


def restarted(state: AttemptState, now_ns: int) -> AttemptState:
    """The agent has started again: what an order said before is said again, or is not so any more."""
    state = _replace(state, phase=phases.restarted(state.phase, now_ns))
    return _replace(state, asks=asks.restarted(state.asks, now_ns), granted="", order_seq=0, hand_back_ns=0)


def leaves_at_once(state: AttemptState) -> bool:
    """Say whether it becomes a fact without a dwell that the member has left its phase: who lent it waits for that."""
    return bool(state.hand_back_ns) and state.phase.current == DEFAULT_PHASE and not is_inside(state)


def away_due_ns(state: AttemptState) -> int | None:
    """Return when the first of the processes that are away is to be forgotten."""
    found = (asks.away_due_ns(state.asks), phases.away_due_ns(state.phase))
    return min((due for due in found if due is not None), default=None)


def forget_away(state: AttemptState, now_ns: int) -> AttemptState:
    """Forget the processes that have been away for too long: they wait for nothing, and are in no phase."""
    return _replace(state, asks=asks.forget_away(state.asks, now_ns), phase=phases.forget_away(state.phase, now_ns))


def gone(state: AttemptState, component: str, replica: int, now_ns: int) -> AttemptState:
    """Forget the processes of a replica that has exited."""
    return _replace(
        state,
        asks=asks.gone(state.asks, component, replica),
        phase=phases.gone(state.phase, component, replica, now_ns),
    )
