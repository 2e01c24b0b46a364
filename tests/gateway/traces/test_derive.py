"""Spans of random histories are whole: they close, fit together, and do not depend on when a projector restarts."""

from __future__ import annotations

from collections import Counter

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate_events import events as e
from tidegate_events import trace
from tidegate_events.journal.base import Recorded
from tidegate_gateway.traces.derive import SpanDeriver
from tidegate_gateway.traces.span import Span, root_id

from tests.gateway.traces.telling import ACTIONS, Action, counted, derived, told

AFTER_THE_END = {"verify"}
OPENED_BY = {
    e.JobSubmitted: ("submit", "wait"),
    e.JobPlaced: ("attempt", "starting"),
    e.PhaseChanged: ("phase",),
    e.QuotaChanged: ("resize",),
    e.SandboxStarted: ("image",),
    e.CheckpointSaved: ("save",),
    e.CancelRequested: ("cancel",),
    e.PreemptRequested: ("preempt",),
    e.StopRequested: ("stop",),
    e.JobSuspended: ("wait",),
    e.JobRequeued: ("wait",),
    e.JobCompleted: ("end",),
    e.JobFailed: ("end",),
    e.JobCancelled: ("end",),
    e.JobRejected: ("end",),
}
AS_ONE = {"queue": "wait", "suspend": "wait", "start": "starting", "resume": "starting"}
NOT_COUNTED = {"verify", "slow", "restore"}
"""What does not begin with an event alone: it also takes that something was awaited, or was not there yet."""


def traces(spans: list[Span]) -> dict[str, list[Span]]:
    found: dict[str, list[Span]] = {}
    for span in spans:
        found.setdefault(span.trace_id, []).append(span)
    return found


def opened(frames: list[Recorded], job: str) -> Counter[str]:
    """Return how many spans of each kind began, by what counts in the journal; a sandbox for each member placed."""
    found: Counter[str] = Counter()
    for frame, counts in counted(frames):
        for event, counts_here in zip(frame.frame.events, counts, strict=True):
            if counts_here and getattr(event, "job", None) == job:
                found.update(OPENED_BY.get(type(event), ()))
                if isinstance(event, e.CheckpointFailed) and event.stage == "save":
                    found["save"] += 1
                if isinstance(event, e.JobPlaced):
                    found["sandbox"] += len(event.members)
    return found


def closed(spans: list[Span]) -> Counter[str]:
    """Return how many spans of each kind were emitted."""
    names = ("phase" if span.name.startswith("phase ") else span.name for span in spans)
    return Counter(AS_ONE.get(name, name) for name in names if name not in NOT_COUNTED)


@settings(max_examples=80, deadline=None)
@given(ACTIONS)
def test_spans_fit_together_at_every_moment(actions: list[Action]) -> None:
    seen: dict[tuple[str, str], Span] = {}
    deriver = SpanDeriver()
    for frame, counts in counted(told(actions)):
        batch = deriver.apply(frame, counts)
        assert [(span.seq, span.ordinal) for span in batch] == [(frame.seq, place) for place in range(len(batch))]
        for span in batch:
            key = (span.trace_id, span.span_id)
            assert key not in seen, f"emitted twice: {span}"
            seen[key] = span
            assert span.start_ns <= span.end_ns
            if span.parent_id:
                parent = seen[span.trace_id, span.parent_id]
                assert span.start_ns >= parent.start_ns, f"{span} begins before {parent}"
        for span in batch:
            # What is linked to is there in the same frame at the latest.
            assert all((link.trace_id, link.span_id) in seen for link in span.links)


@settings(max_examples=80, deadline=None)
@given(ACTIONS)
def test_every_span_closes_by_the_end_of_its_job(actions: list[Action]) -> None:
    frames = told(actions, to_the_end=True)
    deriver = SpanDeriver()
    spans = derived(frames, deriver)
    for found in traces([span for span in spans if span.job]).values():
        job = found[0].job
        assert found[0].trace_id == trace.trace_id(job)
        roots = [span for span in found if not span.parent_id]
        assert [(root.name, root.span_id) for root in roots] == [("submit", root_id(job))]
        (end,) = [span for span in found if span.name == "end"]
        within = [span for span in found if span.name not in AFTER_THE_END]
        assert all(roots[0].start_ns <= span.start_ns and span.end_ns <= end.end_ns for span in within)
        assert closed(found) == opened(frames, job)
    # Only checkpoints whose verdict never came keep anything of an ended job in memory.
    left = SpanDeriver({job: data for job, data in deriver.take_changes().items() if data is not None})
    assert all(kept.unverified and kept.attempt is None for kept in left._jobs.values())


@settings(max_examples=80, deadline=None)
@given(ACTIONS, st.integers(0, 200), st.integers(0, 20))
def test_a_restart_at_any_place_gives_the_same_spans(actions: list[Action], split: int, again: int) -> None:
    frames = counted(told(actions))
    split %= len(frames) + 1
    whole = SpanDeriver()
    wanted = [span for frame, counts in frames for span in whole.apply(frame, counts)]

    stored: dict[str, bytes] = {}
    first = SpanDeriver()
    got = []
    for frame, counts in frames[:split]:
        got += first.apply(frame, counts)
        for job, data in first.take_changes().items():
            if data is None:
                del stored[job]
            else:
                stored[job] = data
    second = SpanDeriver(stored, seq=first.seq)
    # The projector may be given frames again that it has written already.
    for frame, counts in frames[max(0, split - again) :]:
        got += second.apply(frame, counts)
    assert got == wanted
    assert {job: msgspec.json.decode(data or b"{}") for job, data in second.take_changes().items()}.keys() <= set(
        whole.take_changes()
    )


@settings(max_examples=30, deadline=None)
@given(ACTIONS)
def test_replaying_a_history_emits_nothing(actions: list[Action]) -> None:
    frames = counted(told(actions))
    deriver = SpanDeriver()
    assert [span for frame, counts in frames for span in deriver.apply(frame, counts)]
    assert [span for frame, counts in frames for span in deriver.apply(frame, counts)] == []
