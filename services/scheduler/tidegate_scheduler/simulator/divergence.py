"""The first decision that other rules take otherwise: on the recorded states, so no model has a part in it.

Up to there the history is what it would have been under them, but for limits, and each recorded pass is decided again
by them on the state that it was decided on. Where the recording has no pass for a while, they are asked, too: what they
would do there counts if the recorded policy would not do it, so nobody was merely late.

Other limits for the same members, or other devices of the same node, are noted, but they are no end of the comparison:
limits come and go with every phase, and what an operator asks is who runs where, who leaves, and who is kept room.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import msgspec
from tidegate_events import events as e
from tidegate_events.frame import Frame, Writer
from tidegate_events.journal.base import Recorded
from tidegate_events.spec import JobSpec
from tidegate_events.subjects import DECISION

from tidegate_scheduler.decide import decide, decide_by
from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.history.listing import document
from tidegate_scheduler.history.point import FRAMES_PER_WORD, Told
from tidegate_scheduler.history.source import Source
from tidegate_scheduler.operations import RULES as OPERATIONS
from tidegate_scheduler.policy.parameters import SECOND_NS, as_values
from tidegate_scheduler.simulator.clocks import Timed, timed
from tidegate_scheduler.simulator.recorded import Recording
from tidegate_scheduler.simulator.rules import Rules
from tidegate_scheduler.snapshot import decode_snapshot, encode_snapshot
from tidegate_scheduler.state import State
from tidegate_scheduler.strict import keep_models

QUIET_NS = SECOND_NS
"""A scheduler that has said nothing for so long had nothing to say: it decides within milliseconds."""
WAKES_MAX = 100
"""So often the rules are asked in one quiet time, when they want to be; then once more at its end."""
SHOWN_MAX = 5
_SAID = frozenset({"id", "at_ns", "v", "cause", "traceparent", "revision", "reasons", "tenant", "start_by_ns"})
"""How a decision is told, or why; not what it is."""
_LIMITS = (e.QuotaChanged, e.ImagePrefetchHinted)


Seen = Callable[[JobSpec], JobSpec]
"""How rules see a job that was submitted with this specification."""


class Divergence(msgspec.Struct, frozen=True):
    """Where the rules decide otherwise first, in words. `seq` is the recorded pass; 0: the recording has none there."""

    seq: int
    at_seq: int
    at_ns: int
    recorded: tuple[str, ...]
    instead: tuple[str, ...]
    jobs: tuple[str, ...]


class Compared(msgspec.Struct, frozen=True):
    """What was found in so many passes; `limits_since` is the first pass that sets other limits (0: none)."""

    passes: int
    first: Divergence | None
    limits_since: int


async def first_divergence(source: Source, recording: Recording, rules: Rules, seen: Seen, told: Told) -> Compared:
    """Return where `rules` would have decided otherwise first in what was recorded, jobs being as they are `seen`."""
    begin, until, end_ns = recording.begin, recording.until_seq, recording.happened.end_ns
    reading = _Reading(decode_snapshot(encode_snapshot(begin)), rules, seen)
    async with aclosing(source.read(begin.seq, until)) as read_on, aclosing(timed(read_on)) as frames:
        async for each in frames:
            found = reading.take(each)
            if found is not None:
                return Compared(reading.passes, found, reading.limits_since)
            if each.recorded.seq % FRAMES_PER_WORD == 0:
                told(f"Deciding as {rules.name}: frame {each.recorded.seq} of {until}")
    return Compared(reading.passes, reading.over(end_ns), reading.limits_since)


class _Reading:
    """Folds history as if the rules had been in force all the time. Frames wait until a pass says what it knew."""

    def __init__(self, state: State, rules: Rules, seen: Seen) -> None:
        self.passes = 0
        self.limits_since = 0
        self._state = state
        self._rules = rules
        self._seen = seen
        self._values = as_values(rules.parameters)
        self._own_queues = {queue.tenant for queue in rules.queues}
        self._waiting: deque[Recorded] = deque()
        self._last_ns = state.header.now_ns
        self._recorded = (state.header.policy, dict(state.header.parameters))
        self._recorded_queues = {tenant: state.queues.get(tenant) for tenant in self._own_queues}
        self._take_over()
        for queue in rules.queues:
            OPERATIONS[e.QueueChanged](state, queue, "")
        for job in state.jobs:
            self._show(job)

    def take(self, each: Timed) -> Divergence | None:
        """Take the next frame; return what differs before it or in it."""
        recorded = each.recorded
        head, found = recorded.frame.events[0], None
        if recorded.subject == DECISION and isinstance(head, e.DecisionPass):
            found = self._compare(recorded, head)
        elif each.at_ns - self._last_ns >= QUIET_NS:
            found = self._quiet(recorded.seq - 1, each.at_ns)
        self._last_ns = max(self._last_ns, each.at_ns)
        self._waiting.append(recorded)
        return found

    def _compare(self, recorded: Recorded, head: e.DecisionPass) -> Divergence | None:
        """Compare what a recorded pass decided with what the rules decide on its state."""
        self._fold(head.at_seq)
        if self._state.seq != head.at_seq:
            return None  # the pass was decided on a state from before the stretch, or before a quiet time
        self.passes += 1
        decided = decide_by(self._rules.fill, self._state, head.now_ns).events[1:]
        return self._difference(recorded, head.now_ns, recorded.frame.events[1:], decided)

    def over(self, end_ns: int) -> Divergence | None:
        """Return what differs after the last frame."""
        if not self._waiting or end_ns - self._last_ns < QUIET_NS:
            return None
        return self._quiet(self._waiting[-1].seq, end_ns)

    def _quiet(self, seq: int, until_ns: int) -> Divergence | None:
        """Ask the rules where the recording has nothing to say: at once, and whenever they want to be asked."""
        self._fold(seq)
        now_ns = max(self._last_ns, self._state.header.now_ns)
        for _ in range(WAKES_MAX):
            decided = decide_by(self._rules.fill, self._state, now_ns)
            if decided.events:
                return self._not_late(now_ns, decided.events[1:])
            wake_ns = decided.wake_at_ns
            if now_ns == until_ns - 1 or wake_ns is None or wake_ns >= until_ns:
                return None
            now_ns = max(wake_ns, now_ns + 1)
        return self._not_late(until_ns - 1, decide_by(self._rules.fill, self._state, until_ns - 1).events[1:])

    def _not_late(self, now_ns: int, decided: tuple[e.AnyEvent, ...]) -> Divergence | None:
        """Return what the recorded policy would not have decided there, too."""
        late = decode_snapshot(encode_snapshot(self._state))
        late.header.policy, late.header.parameters = self._recorded
        late.touch("header")
        for tenant, queue in self._recorded_queues.items():
            if queue is None:
                late.queues.pop(tenant, None)
            else:
                late.queues[tenant] = queue
            late.touch(f"queue/{tenant}")
        also = set(map(_essence, decide(late, now_ns).events[1:]))
        return self._difference(None, now_ns, (), tuple(event for event in decided if _essence(event) not in also))

    def _difference(
        self, recorded: Recorded | None, now_ns: int, said: tuple[e.AnyEvent, ...], instead: tuple[e.AnyEvent, ...]
    ) -> Divergence | None:
        only_said, only_instead = _apart(said, instead)
        if not only_said and not only_instead:
            if recorded is not None and not self.limits_since and any(_apart(said, instead, limits=True)):
                self.limits_since = recorded.seq
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
        """Have changes of the policy, and of queues that the rules set, change nothing; show jobs as they see them."""
        if isinstance(event, e.PolicyChanged):
            self._recorded = (event.policy, dict(event.parameters))
            self._take_over()
        elif isinstance(event, e.QueueChanged) and event.tenant in self._own_queues:
            self._recorded_queues[event.tenant] = self._state.queues.get(event.tenant)
            for queue in self._rules.queues:
                OPERATIONS[e.QueueChanged](self._state, queue, "")
        elif isinstance(event, e.JobSubmitted) and event.job in self._state.jobs:
            self._show(event.job)

    def _show(self, job: str) -> None:
        spec = self._state.specs[job]
        if (seen := self._seen(spec)) != spec:
            self._state.remember_spec(job, seen)
            self._state.touch(f"job/{job}")

    def _take_over(self) -> None:
        header = self._state.header
        header.policy, header.parameters = self._rules.policy, dict(self._values)
        self._state.touch("header")
        keep_models(self._state)


def _apart(
    one: tuple[e.AnyEvent, ...], other: tuple[e.AnyEvent, ...], *, limits: bool = False
) -> tuple[list[e.AnyEvent], list[e.AnyEvent]]:
    """Return what only one of two passes decides, and what only the other does, in whichever order each does it."""
    first, second = _by_essence(one, limits), _by_essence(other, limits)
    known, there = Counter(essence for essence, _ in first), Counter(essence for essence, _ in second)
    only_known, only_there = known - there, there - known
    return (
        [event for essence, event in first if essence in only_known],
        [event for essence, event in second if essence in only_there],
    )


def _by_essence(events: tuple[e.AnyEvent, ...], limits: bool) -> list[tuple[bytes, e.AnyEvent]]:
    return [(_essence(event, limits), event) for event in events if limits or not isinstance(event, _LIMITS)]


def _essence(event: e.AnyEvent, limits: bool = False) -> bytes:
    """Return what a decision is, whoever takes it and however it is told; with limits and which devices, or without."""
    fields: dict[str, Any] = {name: value for name, value in msgspec.to_builtins(event).items() if name not in _SAID}
    if not limits and isinstance(event, e.JobPlaced):
        for member in fields["members"]:
            member["quotas"], member["gpu_indices"] = (), len(member.get("gpu_indices", ()))
    return msgspec.json.encode(fields, order="sorted")


def _words(events: list[e.AnyEvent]) -> tuple[str, ...]:
    """Return decisions as sentences, the first ones of them."""
    frame = Frame(Writer("scheduler", "", 0, 0), tuple(events[:SHOWN_MAX]))
    shown = [document(Recorded(0, DECISION, frame), index) for index in range(len(frame.events))]
    words = [f"{each['job'] or each.get('node', '')}: {each['words']}" for each in shown]
    return (*words, f"and {len(events) - SHOWN_MAX} more") if len(events) > SHOWN_MAX else tuple(words)
