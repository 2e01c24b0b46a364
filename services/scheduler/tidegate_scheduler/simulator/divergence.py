"""The first decision that other rules take otherwise: on the recorded states, so no model has a part in it.

Up to there the history is what it would have been under them, and each recorded pass is decided again by them on the
state that it was decided on. Where the recording has no pass for a while, they are asked, too: what they would do there
counts if the recorded policy would not do it, so nobody was merely late, and the next recorded pass does not either.
"""

from __future__ import annotations

from collections import Counter, deque
from contextlib import aclosing
from typing import Any

import msgspec
from tidegate_events import events as e
from tidegate_events.frame import Frame, Writer
from tidegate_events.journal.base import Recorded
from tidegate_events.subjects import DECISION

from tidegate_scheduler.decide import decide, decide_by
from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.history.listing import document
from tidegate_scheduler.history.point import FRAMES_PER_WORD, Told, time_of
from tidegate_scheduler.history.source import Source
from tidegate_scheduler.operations import RULES as OPERATIONS
from tidegate_scheduler.policy.parameters import as_values
from tidegate_scheduler.simulator.rules import Rules
from tidegate_scheduler.snapshot import decode_snapshot, encode_snapshot
from tidegate_scheduler.state import State
from tidegate_scheduler.strict import keep_models

QUIET_NS = 1_000_000_000
"""A scheduler that has said nothing for so long had nothing to say: it decides within milliseconds."""
SHOWN_MAX = 5
_SAID = frozenset({"id", "at_ns", "v", "cause", "traceparent", "revision", "reasons", "tenant", "start_by_ns"})
"""How a decision is told, or why; not what it is."""


class Divergence(msgspec.Struct, frozen=True):
    """Where the rules decide otherwise first, in words. `seq` is the recorded pass; 0: the recording has none there."""

    seq: int
    at_seq: int
    at_ns: int
    recorded: tuple[str, ...]
    instead: tuple[str, ...]
    jobs: tuple[str, ...]


class Compared(msgspec.Struct, frozen=True):
    """What was found, and after how many passes that are the same."""

    passes: int
    first: Divergence | None


async def first_divergence(source: Source, begin: State, until: int, rules: Rules, told: Told) -> Compared:
    """Return where `rules` would have decided otherwise first, between the state `begin` and the sequence `until`."""
    reading = _Reading(decode_snapshot(encode_snapshot(begin)), rules)
    async with aclosing(source.read(begin.seq, until)) as frames:
        async for recorded in frames:
            found = reading.take(recorded)
            if found is not None:
                return Compared(reading.passes, found)
            if recorded.seq % FRAMES_PER_WORD == 0:
                told(f"Deciding as {rules.name}: frame {recorded.seq} of {until}")
    return Compared(reading.passes, reading.earlier)


class _Reading:
    """Folds history as if the rules had been in force all the time. Frames wait until a pass says what it knew."""

    def __init__(self, state: State, rules: Rules) -> None:
        self.passes = 0
        self.earlier: Divergence | None = None
        """What the rules would have done where the recording had nothing to say."""

        self._state = state
        self._rules = rules
        self._values = as_values(rules.parameters)
        self._own_queues = {queue.tenant for queue in rules.queues}
        self._waiting: deque[Recorded] = deque()
        self._last_ns = state.header.now_ns
        self._recorded = (state.header.policy, dict(state.header.parameters))
        self._take_over()
        for queue in rules.queues:
            OPERATIONS[e.QueueChanged](state, queue, "")

    def take(self, recorded: Recorded) -> Divergence | None:
        """Take the next frame; return what differs before it or in it."""
        head, found = recorded.frame.events[0], None
        if recorded.subject == DECISION and isinstance(head, e.DecisionPass):
            found = self._earliest(self._compare(recorded, head))
        elif time_of(recorded) - self._last_ns >= QUIET_NS and self.earlier is None:
            self._fold(recorded.seq - 1)
            self.earlier = self._quiet(time_of(recorded) - 1)
        self._last_ns = max(self._last_ns, time_of(recorded))
        self._waiting.append(recorded)
        return found

    def _earliest(self, found: Divergence | None) -> Divergence | None:
        """Return what differs first; who led late, or not at all for a while, decides the same later."""
        earlier, self.earlier = self.earlier, None
        if found is not None and earlier is not None and set(earlier.instead) & set(found.instead):
            return earlier
        return found

    def _compare(self, recorded: Recorded, head: e.DecisionPass) -> Divergence | None:
        """Compare what a recorded pass decided with what the rules decide on its state."""
        self._fold(head.at_seq)
        if self._state.seq != head.at_seq:
            return None  # the pass was decided on a state from before the stretch, or before a quiet time
        self.passes += 1
        decided = decide_by(self._rules.fill, self._state, head.now_ns).events[1:]
        return self._difference(recorded, head.now_ns, recorded.frame.events[1:], decided)

    def _quiet(self, now_ns: int) -> Divergence | None:
        """Ask the rules where the recording has nothing to say."""
        decided = decide_by(self._rules.fill, self._state, now_ns).events[1:]
        if not decided:
            return None
        late = decode_snapshot(encode_snapshot(self._state))
        late.header.policy, late.header.parameters = self._recorded
        late.touch("header")
        also = set(map(_essence, decide(late, now_ns).events[1:]))
        return self._difference(None, now_ns, (), tuple(event for event in decided if _essence(event) not in also))

    def _difference(
        self, recorded: Recorded | None, now_ns: int, said: tuple[e.AnyEvent, ...], instead: tuple[e.AnyEvent, ...]
    ) -> Divergence | None:
        known, other = Counter(map(_essence, said)), Counter(map(_essence, instead))
        only_said = [event for event in said if _essence(event) in known - other]
        only_instead = [event for event in instead if _essence(event) in other - known]
        if not only_said and not only_instead:
            return None
        jobs = dict.fromkeys(getattr(event, "job", "") for event in (*only_said, *only_instead))
        return Divergence(
            seq=recorded.seq if recorded is not None else 0,
            at_seq=self._state.seq,
            at_ns=now_ns,
            recorded=_words(only_said),
            instead=_words(only_instead),
            jobs=tuple(job for job in jobs if job)[:SHOWN_MAX],
        )

    def _fold(self, until: int) -> None:
        while self._waiting and self._waiting[0].seq <= until:
            evolve(self._state, self._waiting.popleft(), self._keep_rules)

    def _keep_rules(self, event: e.AnyEvent) -> None:
        """Have the recorded changes of the policy, and of the queues that the rules set, not change anything here."""
        if isinstance(event, e.PolicyChanged):
            self._recorded = (event.policy, dict(event.parameters))
            self._take_over()
        elif isinstance(event, e.QueueChanged) and event.tenant in self._own_queues:
            for queue in self._rules.queues:
                OPERATIONS[e.QueueChanged](self._state, queue, "")

    def _take_over(self) -> None:
        header = self._state.header
        header.policy, header.parameters = self._rules.policy, dict(self._values)
        self._state.touch("header")
        keep_models(self._state)


def _essence(event: e.AnyEvent) -> bytes:
    """Return what a decision is, whoever takes it and however it is told."""
    fields: dict[str, Any] = msgspec.to_builtins(event)
    return msgspec.json.encode({name: value for name, value in fields.items() if name not in _SAID}, order="sorted")


def _words(events: list[e.AnyEvent]) -> tuple[str, ...]:
    """Return decisions as sentences, the first ones of them."""
    frame = Frame(Writer("scheduler", "", 0, 0), tuple(events[:SHOWN_MAX]))
    shown = [document(Recorded(0, DECISION, frame), index) for index in range(len(frame.events))]
    words = [f"{each['job'] or each.get('node', '')}: {each['words']}" for each in shown]
    return (*words, f"and {len(events) - SHOWN_MAX} more") if len(events) > SHOWN_MAX else tuple(words)
