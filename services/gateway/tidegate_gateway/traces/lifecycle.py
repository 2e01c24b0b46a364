"""What the scheduler (and the gateway) say of a job: waiting, attempts, preemption, and the end."""

from __future__ import annotations

from itertools import islice
from typing import Any

from tidegate_events import events as e

from tidegate_gateway.traces.members import leave_with_attempt, seat
from tidegate_gateway.traces.moment import END, OK, PLAIN, Ending, Moment, of_attempt, reasons
from tidegate_gateway.traces.saves import end_saves
from tidegate_gateway.traces.span import GATEWAY, ITEMS_MAX, METRICS, SCHEDULER, Attributes, Fault, root_id
from tidegate_gateway.traces.state import AttemptTrace

QUEUE, SUSPEND = "queue", "suspend"
INFRASTRUCTURE_CODE = "Infrastructure"
"""The code of the scheduler's reason where it gives a job up for the cluster's sake."""
_FAULTS: dict[str, Fault] = {"failed": "job", "lost": "infrastructure"}


def on_submitted(moment: Moment, event: e.JobSubmitted) -> None:
    """The root: short, so that the trace can be opened at once, and the parent that every `traceparent` names."""
    spec = event.spec
    about: Attributes = {
        "tidegate.name": spec.name,
        "tidegate.type": spec.type,
        "tidegate.submitter": spec.submitter,
        "tidegate.priority": spec.priority,
        "tidegate.gang_size": spec.gang_size,
        "tidegate.isolation": spec.isolation,
    }
    root = moment.begin("submit", GATEWAY, parent_id="", attributes=about)
    root.id = root_id(event.job)
    moment.finish(root, OK, kind="server")
    moment.job.waiting = moment.begin(QUEUE, SCHEDULER)


def on_cancel_requested(moment: Moment, event: e.CancelRequested) -> None:
    """Somebody asked for the end; the span lasts until it came."""
    if moment.job.cancel is None:
        about: Attributes = {"tidegate.actor": event.actor} if event.actor else {}
        moment.job.cancel = moment.begin("cancel", SCHEDULER, attributes=about)


def on_room_reserved(moment: Moment, event: e.RoomReserved) -> None:
    """The wait goes on, with room kept for it."""
    if (waiting := moment.job.waiting) is not None:
        waiting.attributes |= {"tidegate.reserved_nodes": event.nodes, **reasons(event.reasons)}


def on_placed(moment: Moment, event: e.JobPlaced) -> None:
    """The wait ends and an attempt begins: a point in time, under which everything of the attempt stands."""
    job = moment.job
    _end_waiting(moment, PLAIN, reasons(event.reasons, of_end=True))
    nodes = tuple(sorted({member.node for member in event.members}))
    about: Attributes = {"tidegate.attempt": event.attempt, "tidegate.nodes": nodes, **reasons(event.reasons)}
    if event.resume is not None:
        about |= {"tidegate.checkpoint": event.resume.id, "tidegate.step": event.resume.step}
    marker = moment.begin("attempt", SCHEDULER, attributes=about, by_pass=True)
    attempt = AttemptTrace(event.attempt, marker.id, moment.at_ns, [])
    moment.finish(marker)
    job.attempt = attempt
    if event.resume is not None:
        attempt.resume_step = event.resume.step
    name = "start" if event.resume is None else "resume"
    attempt.starting = moment.begin(name, SCHEDULER, parent_id=marker.id, attributes=about)
    for placement in event.members:
        seat(moment, attempt, placement)


def on_started(moment: Moment, event: e.JobStarted | e.JobResumed) -> None:
    """Every member runs."""
    attempt = moment.job.attempt
    if attempt is not None and attempt.starting is not None:
        begun, attempt.starting = attempt.starting, None
        begun.passes += moment.passes()
        moment.finish(begun, OK)


def on_preempt_requested(moment: Moment, event: e.PreemptRequested) -> None:
    """The job shall save and leave; the span lasts until it has."""
    about: Attributes = {"tidegate.for_job": event.for_job, "tidegate.grace_seconds": event.grace_seconds}
    moment.job.preemptions += 1
    _begin_leaving(moment, "preempt", {**about, **reasons(event.reasons)})


def on_stop_requested(moment: Moment, event: e.StopRequested) -> None:
    """The attempt shall end; the span lasts until it has."""
    _begin_leaving(moment, "stop", {"tidegate.grace_seconds": event.grace_seconds, **reasons(event.reasons)})


def on_suspended(moment: Moment, event: e.JobSuspended) -> None:
    """The attempt is over, and the job waits to resume."""
    about: Attributes = {"tidegate.acknowledged": event.acknowledged, "tidegate.lost_steps": event.lost_steps}
    ending = OK if event.acknowledged else PLAIN
    _close_attempt(moment, ending, {**about, **reasons(event.reasons, of_end=True)})
    if event.step is not None:
        about |= {"tidegate.step": event.step, "tidegate.checkpoint": event.checkpoint_id}
    _begin_waiting(moment, SUSPEND, {"tidegate.attempt": event.attempt, **about, **reasons(event.reasons)})


def on_requeued(moment: Moment, event: e.JobRequeued) -> None:
    """The attempt came to nothing, and the job waits for another."""
    lost: Attributes = {"tidegate.lost_steps": event.lost_steps}
    fault = _FAULTS.get(event.outcome)
    ending = Ending("error", "; ".join(_texts(event)), fault) if fault else PLAIN
    _close_attempt(moment, ending, {**lost, **reasons(event.reasons, of_end=True)})
    after: Attributes = {"tidegate.attempt": event.attempt, "tidegate.after": event.outcome}
    _begin_waiting(moment, QUEUE, {**after, **lost, **reasons(event.reasons)})


def on_ended(moment: Moment, event: e.JobCompleted | e.JobFailed | e.JobCancelled | e.JobRejected) -> None:
    """The job's end: a point in time, not before the end of anything in the trace."""
    job = moment.job
    ending = _job_ending(event)
    about = reasons(event.reasons, of_end=True)
    _end_waiting(moment, ending, about)
    _close_attempt(moment, ending, about)
    if (cancel := job.cancel) is not None:
        job.cancel = None
        moment.finish(cancel, OK if isinstance(event, e.JobCancelled) else PLAIN)
    about = reasons(event.reasons)
    about |= {
        "tidegate.outcome": type(event).__name__.removeprefix("Job").lower(),
        "tidegate.preemptions": job.preemptions,
    }
    about |= _result(event)
    if job.left_out:
        about["tidegate.spans_left_out"] = job.left_out
    end = moment.begin(END, SCHEDULER, start_ns=max(moment.at_ns, job.latest_ns), attributes=about, by_pass=True)
    moment.finish(end, ending, end_ns=end.start_ns)
    job.ended_seq = moment.output.seq


def on_step_rate_low(moment: Moment, event: e.StepRateLow) -> None:
    """The job is slower than it declared, until it recovers or the attempt ends."""
    attempt = moment.job.attempt
    if attempt is not None and attempt.number == event.attempt and attempt.slow is None:
        about = of_attempt(attempt, rate_millis=event.rate_millis, target_millis=event.target_millis)
        attempt.slow = moment.begin("slow", METRICS, parent_id=attempt.marker_id, attributes=about)


def on_step_rate_recovered(moment: Moment, event: e.StepRateRecovered) -> None:
    """The job is fast enough again."""
    attempt = moment.job.attempt
    if attempt is not None and attempt.number == event.attempt and attempt.slow is not None:
        slow, attempt.slow = attempt.slow, None
        moment.finish(slow, attributes={"tidegate.recovered": True})


def _begin_waiting(moment: Moment, name: str, attributes: Attributes) -> None:
    _end_waiting(moment, PLAIN, {})
    moment.job.waiting = moment.begin(name, SCHEDULER, attributes=attributes, by_pass=True)


def _end_waiting(moment: Moment, ending: Ending, attributes: Attributes) -> None:
    waiting, moment.job.waiting = moment.job.waiting, None
    if waiting is not None:
        waiting.passes += moment.passes()
        moment.finish(waiting, ending, attributes=attributes)


def _begin_leaving(moment: Moment, name: str, attributes: Attributes) -> None:
    attempt = moment.job.attempt
    if attempt is None:
        return
    if attempt.leaving is not None:
        moment.finish(attempt.leaving, attributes={"tidegate.overtaken_by": name})
    about = {**of_attempt(attempt), **attributes}
    attempt.leaving = moment.begin(name, SCHEDULER, parent_id=attempt.marker_id, attributes=about, by_pass=True)


def _close_attempt(moment: Moment, ending: Ending, attributes: Attributes) -> None:
    """End everything that belongs to the attempt."""
    attempt = moment.job.attempt
    if attempt is None:
        return
    leave_with_attempt(moment, attempt)
    end_saves(moment, attempt)
    for begun, how in ((attempt.starting, ending), (attempt.leaving, ending), (attempt.slow, PLAIN)):
        if begun is not None:
            moment.finish(begun, how, attributes=attributes)
    moment.job.attempt = None


def _job_ending(event: Any) -> Ending:
    if isinstance(event, e.JobCompleted):
        return OK
    if isinstance(event, e.JobCancelled):
        return PLAIN
    infrastructure = any(reason.code == INFRASTRUCTURE_CODE for reason in event.reasons)
    return Ending("error", "; ".join(_texts(event)), "infrastructure" if infrastructure else "job")


def _texts(event: e.Decision) -> tuple[str, ...]:
    texts = reasons(event.reasons).get("tidegate.reasons", ())
    return texts if isinstance(texts, tuple) else ()


def _result(event: Any) -> Attributes:
    found: Attributes = {}
    if isinstance(event, e.JobCompleted):
        found = {
            f"tidegate.result.{name}": value
            for name, value in islice(event.result.items(), ITEMS_MAX)
            if value is not None
        }
    if isinstance(event, e.JobFailed):
        named = (("exit_code", event.exit_code), ("signal", event.signal), ("oom", event.oom or None))
        found = {f"tidegate.{name}": value for name, value in named if value is not None}
    if not isinstance(event, e.JobRejected):
        found["tidegate.attempt"] = event.attempt
    return found
