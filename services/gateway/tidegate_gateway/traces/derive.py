"""Derives spans from the journal: `SpanDeriver.apply` folds one frame and returns the spans that ended in it.

Pure: no clock, no I/O, no randomness. What counts and what is void is the read model's word (`View.apply`), so both
always tell one story. Its memory is one `JobTrace` for each job that has not ended, which the projector stores in the
transaction of the spans: a restart goes on where it stood, and a frame that was folded before emits nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from tidegate_events import events as e
from tidegate_events.frame import Writer
from tidegate_events.journal.base import Recorded
from tidegate_events.seating import Seating
from tidegate_events.subjects import speaks_for

from tidegate_gateway.traces import lifecycle, members, saves, state
from tidegate_gateway.traces.moment import Moment, Output
from tidegate_gateway.traces.span import SCHEDULER, Span, bounded_ns, cleaned, pass_link
from tidegate_gateway.traces.state import JobTrace

ENDED_KEPT_MAX = 1_000
"""Ended jobs that are remembered while the verification of their last checkpoints is awaited."""


class SpanDeriver:
    """Everything that traces remember; `seq` is the last frame folded."""

    def __init__(self, states: Mapping[str, bytes] | None = None, seq: int = 0) -> None:
        self.seq = seq
        self._jobs: dict[str, JobTrace] = {
            trace.job: trace for trace in (state.decode(data) for data in (states or {}).values())
        }
        self._changed: set[str] = set()
        self._seating = Seating()
        for trace in self._jobs.values():
            self._seat(trace)
        ended = [(trace.ended_seq, job) for job, trace in self._jobs.items() if trace.ended_seq]
        self._ended: dict[str, None] = dict.fromkeys(job for _, job in sorted(ended))

    def apply(self, recorded: Recorded, counted: Sequence[bool]) -> tuple[Span, ...]:
        """Fold a frame; `counted` says which of its events count. A frame that was folded before emits nothing."""
        if recorded.seq <= self.seq:
            return ()
        self.seq = recorded.seq
        output = Output(recorded.seq)
        writer = recorded.frame.writer
        passed: e.DecisionPass | None = None
        for event, counts in zip(recorded.frame.events, counted, strict=True):
            if isinstance(event, e.DecisionPass) and counts:
                passed = event
                output.pass_id = event.id
            elif counts or self._late_verdict(recorded, event):
                self._on_event(event, writer, output)
        if passed is not None and output.linked:
            output.spans.append(_pass_span(passed, writer, output))
        self._forget_oldest()
        return tuple(output.spans)

    def take_changes(self) -> dict[str, bytes | None]:
        """Return what changed since the last call, to be stored: a job's memory, None where it is to be forgotten."""
        changes = {job: state.encode(self._jobs[job]) if job in self._jobs else None for job in sorted(self._changed)}
        self._changed.clear()
        return changes

    def _on_event(self, event: e.Event, writer: Writer, output: Output) -> None:
        if isinstance(event, e.NodeLost | e.NodeJoined):
            self._on_node_event(event, output)
            return
        rule = _RULES.get(type(event))
        if rule is None or not isinstance(event, e.JobEvent):
            return
        if isinstance(event, e.JobSubmitted):
            began_ns = bounded_ns(event.at_ns)
            self._jobs[event.job] = JobTrace(event.job, event.tenant, began_ns, began_ns)
        if (job := self._jobs.get(event.job)) is None:
            return
        rule(Moment(output, job, event.id, event.at_ns, writer.instance), event)
        self._changed.add(job.job)
        if isinstance(event, e.JobPlaced) or job.attempt is None:
            self._seat(job)
        self._settle(job)

    def _seat(self, job: JobTrace) -> None:
        """Note on which nodes the attempt has members, those that are gone since included."""
        members_there = job.attempt.members if job.attempt is not None else ()
        self._seating.seat(job.job, tuple(dict.fromkeys([member.node for member in members_there])))

    def _settle(self, job: JobTrace) -> None:
        """Forget a job that ended, as soon as no verdict on its checkpoints is awaited."""
        if not job.ended_seq:
            return
        if job.unverified:
            self._ended.setdefault(job.job)
        else:
            self._ended.pop(job.job, None)
            del self._jobs[job.job]

    def _forget_oldest(self) -> None:
        while len(self._ended) > ENDED_KEPT_MAX:
            job = next(iter(self._ended))
            del self._ended[job], self._jobs[job]
            self._changed.add(job)

    def _late_verdict(self, recorded: Recorded, event: e.Event) -> bool:
        """Say whether this verdict is void only because its job has ended: it is true of the bytes all the same."""
        if not isinstance(event, e.CheckpointVerified | e.CheckpointFailed):
            return False
        job, writer = self._jobs.get(event.job), recorded.frame.writer
        if job is None or not job.ended_seq or writer.service != "checkpoint":
            return False
        awaited = any(each.checkpoint == event.checkpoint_id for each in job.unverified)
        return awaited and speaks_for(recorded.subject, writer)

    def _on_node_event(self, event: e.NodeLost | e.NodeJoined, output: Output) -> None:
        """End what ran on a node that is gone, or that came back without it."""
        why, held = "its node was lost", frozenset[tuple[str, int, int]]()
        if isinstance(event, e.NodeJoined):
            why = "the node came back without it"
            held = frozenset((sandbox.job, sandbox.attempt, sandbox.rank) for sandbox in event.sandboxes)
        for job in [self._jobs[name] for name in sorted(self._seating.on(event.node))]:
            attempt = job.attempt
            assert attempt is not None, "who is on a node has an attempt"
            for member in [each for each in attempt.members if each.node == event.node]:
                # What had not started yet is ordered anew when the node joins; the scheduler sees it the same way.
                joined = isinstance(event, e.NodeJoined)
                if joined and (not member.started or (job.job, attempt.number, member.rank) in held):
                    continue
                members.lose(Moment(output, job, event.id, event.at_ns, event.node), member, why)
                self._changed.add(job.job)


def _pass_span(event: e.DecisionPass, writer: Writer, output: Output) -> Span:
    """Return the span of a scheduling pass that others link to: the root, and the whole, of a trace of its own."""
    link = pass_link(event.id)
    return Span(
        seq=output.seq,
        ordinal=len(output.spans),
        trace_id=link.trace_id,
        span_id=link.span_id,
        parent_id="",
        name="pass",
        service=SCHEDULER,
        instance=writer.instance,
        kind="internal",
        start_ns=bounded_ns(event.now_ns),
        end_ns=bounded_ns(event.now_ns),
        status="ok",
        message="",
        attributes=cleaned(
            {
                "tidegate.event": event.id,
                "tidegate.epoch": event.epoch,
                "tidegate.at_seq": event.at_seq,
                "tidegate.decisions": event.decisions,
                "tidegate.core": event.core,
                "tidegate.policy": event.policy,
                "tidegate.state_digest": event.state_digest,
            }
        ),
        links=(),
        tenant="",
        job="",
    )


_RULES: dict[type[msgspec.Struct], Callable[[Moment, Any], None]] = {
    e.JobSubmitted: lifecycle.on_submitted,
    e.CancelRequested: lifecycle.on_cancel_requested,
    e.RoomReserved: lifecycle.on_room_reserved,
    e.JobPlaced: lifecycle.on_placed,
    e.JobStarted: lifecycle.on_started,
    e.JobResumed: lifecycle.on_started,
    e.PreemptRequested: lifecycle.on_preempt_requested,
    e.StopRequested: lifecycle.on_stop_requested,
    e.JobSuspended: lifecycle.on_suspended,
    e.JobRequeued: lifecycle.on_requeued,
    e.JobCompleted: lifecycle.on_ended,
    e.JobFailed: lifecycle.on_ended,
    e.JobCancelled: lifecycle.on_ended,
    e.JobRejected: lifecycle.on_ended,
    e.StepRateLow: lifecycle.on_step_rate_low,
    e.StepRateRecovered: lifecycle.on_step_rate_recovered,
    e.PlacementRejected: members.on_placement_rejected,
    e.SandboxStarted: members.on_sandbox_started,
    e.SandboxExited: members.on_sandbox_exited,
    e.PhaseChanged: members.on_phase_changed,
    e.QuotaChanged: members.on_quota_changed,
    e.QuotaApplied: members.on_quota_applied,
    e.CheckpointSaved: saves.on_checkpoint_saved,
    e.CheckpointFailed: saves.on_checkpoint_failed,
    e.CheckpointVerified: saves.on_checkpoint_verified,
}
