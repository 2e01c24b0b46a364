"""Recompute a recorded history: every scheduling pass decided again on the same state, compared bit for bit.

A redacted history is compared without what redaction removes: state digests and free text. All else must be equal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator

import msgspec
from tidegate_events import events as e
from tidegate_events.frame import Frame, encode
from tidegate_events.journal.base import Recorded
from tidegate_events.subjects import DECISION, speaks_for

from tidegate_scheduler.decide import decide
from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.history.redaction import redact_frame
from tidegate_scheduler.state import State

SUSPECTS_MAX = 20
BIT_FOR_BIT = "bit for bit"
IN_NO_PASS = "nothing: a decision stands in a pass"
_OF_A_PASS = (e.Decision, e.NodeLost, e.NodeForgotten, e.DecisionPass)
WITHOUT_REMOVED = "without state digests and free text, which were removed"


class Inputs(msgspec.Struct, frozen=True):
    """What the pass that differs was decided on: all that `decide` is given, and the facts folded since the last one.

    If the state differs and the pass before was equal, one of `facts` (the newest ones of them) was changed.
    """

    now_ns: int
    core: str
    policy: int
    parameters: dict[str, int]
    recorded_state_digest: str
    state_digest: str
    facts: tuple[str, ...]


class Difference(msgspec.Struct, frozen=True):
    """The first pass that came out otherwise: both sides as JSON text, and the state it was decided on."""

    seq: int
    at_seq: int
    recorded: str
    recomputed: str
    index: int = 0
    job: str = ""
    inputs: Inputs | None = None
    story: tuple[str, ...] = ()


class Verification(msgspec.Struct):
    """What was read and what of it was proved; `unproved` counts passes decided before what was read begins."""

    ok: bool = True
    frames: int = 0
    events: int = 0
    passes: int = 0
    decisions: int = 0
    decisions_verified: int = 0
    state_digest: str = ""
    difference: Difference | None = None
    after: int = 0
    until: int = 0
    unproved: int = 0
    compared: str = BIT_FOR_BIT


class Redacted(msgspec.Struct, frozen=True):
    """Says that a history is redacted, and which of its passes ended for their size before texts were removed."""

    cut_passes: frozenset[int] = frozenset()


async def verify(
    frames: AsyncIterator[Recorded], state: State | None = None, *, after: int = 0, redacted: Redacted | None = None
) -> Verification:
    """Fold `frames`, which follow on `state`, and decide each recorded pass later than `after` again.

    Stops at the first difference. Without a state, the frames are a journal from its beginning. Raises
    UnknownPolicyError where the history was decided by a policy that this code does not have.
    """
    verifier = _Verifier(state or State(), after, redacted)
    async for recorded in frames:
        if not verifier.take(recorded):
            break
    return verifier.finish()


class _Verifier:
    """Folds as the running scheduler did: what came between a pass and the state it was decided on is folded later."""

    def __init__(self, state: State, after: int, redacted: Redacted | None) -> None:
        self._state = state
        self._after = after
        self._redacted = redacted
        self._unfolded: deque[Recorded] = deque()
        self._facts: deque[str] = deque(maxlen=SUSPECTS_MAX)
        self._began_at = state.seq
        self._first = True
        # What `evolve` will hold against scheduler frames when it comes to them.
        self._leads = state.header.epoch
        self._marks = {name: mark for name, mark in state.writers.items() if name.startswith("scheduler/")}
        self.report = Verification(after=max(after, state.seq), until=state.seq)
        if redacted is not None:
            self.report.compared = WITHOUT_REMOVED

    def take(self, recorded: Recorded) -> bool:
        """Take the next frame; say whether all is equal so far."""
        report = self.report
        report.frames += 1
        report.events += len(recorded.frame.events)
        report.until = recorded.seq
        head = recorded.frame.events[0]
        if self._counts(recorded):
            first, self._first = self._first, False
            if isinstance(head, e.DecisionPass):
                if first and head.at_seq < self._began_at:
                    report.unproved += 1
                elif not self._prove(recorded, head):
                    return False
            elif not self._decides_nothing(recorded):
                return False
        self._unfolded.append(recorded)
        return True

    def finish(self) -> Verification:
        """Fold what is left and return the report."""
        if self.report.ok:
            self._fold_to(self.report.until)
            self.report.state_digest = self._state.digest()
        return self.report

    def _counts(self, recorded: Recorded) -> bool:
        """Say whether `evolve` heeds a frame as the leading scheduler's: no duplicate, no deposed or false one."""
        writer = recorded.frame.writer
        if recorded.subject != DECISION or not speaks_for(recorded.subject, writer):
            return False
        name, mark = f"{writer.service}/{writer.instance}", (writer.epoch, writer.writer_seq)
        if mark <= self._marks.get(name, (0, -1)) or writer.epoch < self._leads:
            return False
        self._marks[name] = mark
        for event in recorded.frame.events:
            if isinstance(event, e.LeaderElected):
                self._leads = max(self._leads, event.epoch)
        return True

    def _fold_to(self, seq: int) -> None:
        while self._unfolded and self._unfolded[0].seq <= seq:
            recorded = self._unfolded.popleft()
            evolve(self._state, recorded)
            for index, event in enumerate(recorded.frame.events):
                self._facts.append(f"{recorded.seq}.{index} {type(event).__name__} {_about(event)}".rstrip())

    def _prove(self, recorded: Recorded, head: e.DecisionPass) -> bool:
        self._fold_to(head.at_seq)
        if recorded.seq <= self._after:
            return True
        decisions = len(recorded.frame.events) - 1
        self.report.passes += 1
        self.report.decisions += decisions
        self.report.difference = self._compare(recorded, head)
        if self.report.difference is not None:
            self.report.ok = False
            return False
        self.report.decisions_verified += decisions
        self._facts.clear()
        return True

    def _decides_nothing(self, recorded: Recorded) -> bool:
        """Say that a frame that is no pass holds no decision: `evolve` would heed it, and nothing would prove it."""
        if recorded.seq <= self._after:
            return True
        for index, event in enumerate(recorded.frame.events):
            if isinstance(event, _OF_A_PASS):
                at_seq, job = recorded.seq - 1, str(getattr(event, "job", ""))
                self.report.difference = Difference(recorded.seq, at_seq, _text(event), IN_NO_PASS, index, job)
                self.report.ok = False
                return False
        return True

    def _compare(self, recorded: Recorded, head: e.DecisionPass) -> Difference | None:
        if self._state.seq != head.at_seq:
            left, right = f"decided at {head.at_seq}", f"history is at {self._state.seq}"
            return Difference(recorded.seq, head.at_seq, left, right)
        again = Frame(recorded.frame.writer, decide(self._state, head.now_ns).events)
        if self._redacted is not None:
            again = _as_redacted(again, recorded, self._redacted)
        theirs, ours = recorded.frame.events, again.events
        if ours and encode(again) == encode(recorded.frame):
            return None
        index = _first_difference(theirs, ours)
        assert index is not None, "frames that differ in bytes differ in an event"
        left, right = (_text(events[index]) if index < len(events) else "nothing" for events in (theirs, ours))
        job = next(_jobs_that_differ(theirs, ours), "")
        return Difference(recorded.seq, head.at_seq, left, right, index, job, self._inputs(head))

    def _inputs(self, head: e.DecisionPass) -> Inputs:
        header = self._state.header
        digest = self._state.digest()
        return Inputs(
            head.now_ns, head.core, header.policy, header.parameters, head.state_digest, digest, tuple(self._facts)
        )


def _as_redacted(again: Frame, recorded: Recorded, redacted: Redacted) -> Frame:
    """Return the recomputed pass as a redacted file would hold it; one that was cut for its size is cut there again."""
    events = redact_frame(again).events
    if recorded.seq in redacted.cut_passes:
        events = events[: len(recorded.frame.events)]
        if events and isinstance(events[0], e.DecisionPass):
            events = (msgspec.structs.replace(events[0], decisions=len(events) - 1), *events[1:])
    return Frame(again.writer, events)


def _first_difference(theirs: tuple[e.AnyEvent, ...], ours: tuple[e.AnyEvent, ...]) -> int | None:
    for index in range(max(len(theirs), len(ours))):
        if index >= len(theirs) or index >= len(ours) or _text(theirs[index]) != _text(ours[index]):
            return index
    return None


def _jobs_that_differ(theirs: tuple[e.AnyEvent, ...], ours: tuple[e.AnyEvent, ...]) -> Iterator[str]:
    for index in range(1, max(len(theirs), len(ours))):
        pair = [events[index] for events in (theirs, ours) if index < len(events)]
        if len(pair) == 1 or _text(pair[0]) != _text(pair[1]):
            yield from (job for event in pair if (job := getattr(event, "job", "")))


def _about(event: e.Event) -> str:
    return str(getattr(event, "job", "") or getattr(event, "node", ""))


def _text(event: object) -> str:
    return msgspec.json.encode(event).decode()
