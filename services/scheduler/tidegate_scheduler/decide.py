"""`decide`: what to do now, from the state and the time alone. It changes nothing; what it returns is journaled."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from tidegate_events import events as e

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy import registry
from tidegate_scheduler.state import State
from tidegate_scheduler.version import CORE_VERSION


class Pass(msgspec.Struct, frozen=True):
    """What a pass decided: the frame's events (empty for nothing), when to decide again, and why each job waits.

    `cut`: the pass was full before it had looked at every job.
    """

    events: tuple[e.AnyEvent, ...]
    wake_at_ns: int | None
    waiting: Mapping[str, e.Reason]
    cut: bool = False


def decide(state: State, now_ns: int) -> Pass:
    """Return the pass on `state` at `now_ns`, which is not before the last pass, by the policy that the state names.

    Raises UnknownPolicyError for a policy that this code does not have.
    """
    return decide_by(registry.find(state.header.policy).decide, state, now_ns)


def decide_by(fill: Callable[[Draft], None], state: State, now_ns: int) -> Pass:
    """Return the pass that these rules make, whatever policy the state names: for comparisons."""
    now_ns = max(now_ns, state.header.now_ns)
    draft = Draft(state, now_ns)
    fill(draft)
    if not draft.events:
        return Pass((), draft.wake_at_ns, draft.waiting)
    head = e.DecisionPass(
        id=f"{state.header.epoch}-{state.seq}-0",
        at_ns=now_ns,
        epoch=state.header.epoch,
        at_seq=state.seq,
        now_ns=now_ns,
        core=CORE_VERSION,
        policy=state.header.policy,
        state_digest=state.digest(),
        decisions=len(draft.events),
    )
    return Pass((head, *draft.events), draft.wake_at_ns, draft.waiting, draft.cut)
