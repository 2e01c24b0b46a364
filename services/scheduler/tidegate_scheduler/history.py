"""Recompute a recorded history: every scheduling pass decided again on the same state, compared bit for bit."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator

import msgspec
from tidegate_events.events import DecisionPass, LeaderElected
from tidegate_events.frame import Frame, encode
from tidegate_events.journal.base import Recorded
from tidegate_events.subjects import DECISION

from tidegate_scheduler.decide import decide
from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.state import State


class Difference(msgspec.Struct, frozen=True):
    """The first pass that came out otherwise: both sides as JSON text, and the state it was decided on."""

    seq: int
    at_seq: int
    recorded: str
    recomputed: str


class Verification(msgspec.Struct):
    """What was read and what of it was proved."""

    ok: bool = True
    frames: int = 0
    events: int = 0
    passes: int = 0
    decisions: int = 0
    decisions_verified: int = 0
    state_digest: str = ""
    difference: Difference | None = None


async def verify(frames: AsyncIterator[Recorded]) -> Verification:
    """Fold `frames` (a journal from its beginning) and decide each recorded pass again.

    Stops at the first difference. A frame that comes between the state a pass was decided on and the pass itself is
    folded after the pass was recomputed, as it was in the running scheduler.
    """
    state = State()
    report = Verification()
    unfolded: deque[Recorded] = deque()
    newest = (0, -1)
    leads = 0
    async for recorded in frames:
        report.frames += 1
        report.events += len(recorded.frame.events)
        head = next(iter(recorded.frame.events), None)
        mark = (recorded.frame.writer.epoch, recorded.frame.writer.writer_seq)
        if recorded.subject == DECISION and isinstance(head, LeaderElected):
            leads = max(leads, head.epoch)
        if mark[0] >= leads and recorded.subject == DECISION and isinstance(head, DecisionPass) and mark > newest:
            newest = mark
            while unfolded and unfolded[0].seq <= head.at_seq:
                evolve(state, unfolded.popleft())
            report.passes += 1
            report.decisions += len(recorded.frame.events) - 1
            report.difference = _compare(state, recorded, head)
            if report.difference is not None:
                report.ok = False
                return report
            report.decisions_verified += len(recorded.frame.events) - 1
        unfolded.append(recorded)
    while unfolded:
        evolve(state, unfolded.popleft())
    report.state_digest = state.digest()
    return report


def _compare(state: State, recorded: Recorded, head: DecisionPass) -> Difference | None:
    if state.seq != head.at_seq:
        return Difference(recorded.seq, head.at_seq, f"decided at {head.at_seq}", f"history is at {state.seq}")
    again = decide(state, head.now_ns).events
    theirs = recorded.frame.events
    if again and encode(Frame(recorded.frame.writer, again)) == encode(recorded.frame):
        return None
    for index in range(max(len(theirs), len(again))):
        left = theirs[index] if index < len(theirs) else None
        right = again[index] if index < len(again) else None
        if left != right:
            return Difference(recorded.seq, head.at_seq, _text(left), _text(right))
    raise AssertionError("frames that differ in bytes differ in an event")


def _text(event: object) -> str:
    return "nothing" if event is None else msgspec.json.encode(event).decode()
