"""What operators asked for, as `evolve` folds it: for a job until it has ended, for a node across its agent's restarts.

An older decision about the job is void where it could undo what was asked: a placement of a job that is held since, a
suspension of one that is resumed since. A priority or a limit moves no job on, so that what is under way goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegate_events import events as e

from tidegate_scheduler.lifecycle import moved
from tidegate_scheduler.state import MAINTENANCE_MAX, NO_LIMIT, Job, Maintenance, Queue, State

# ---- about a job ----


def _on_hold(state: State, event: e.HoldRequested, at: str) -> None:
    job = state.jobs.get(event.job)
    if job is not None and not job.held:
        job.held = True
        moved(state, job, at)


def _on_release(state: State, event: e.ReleaseRequested, at: str) -> None:
    job = state.jobs.get(event.job)
    if job is not None and job.held:
        job.held = False
        _noted(state, job, at)


def _on_suspend(state: State, event: e.SuspendRequested, at: str) -> None:
    job = state.jobs.get(event.job)
    if job is None or job.suspend_requested or (job.waiting and job.held):
        return
    if job.waiting:
        job.held = True  # nothing of it is there that could leave
    else:
        job.suspend_requested = True
    moved(state, job, at)


def _on_resume(state: State, event: e.ResumeRequested, at: str) -> None:
    """End hold and suspension, and void a request to leave that was decided before: it would hold the job again."""
    job = state.jobs.get(event.job)
    if job is not None and (job.held or job.suspend_requested):
        job.held = job.suspend_requested = False
        moved(state, job, at)


def _on_requeue(state: State, event: e.RequeueRequested, at: str) -> None:
    job = state.jobs.get(event.job)
    if job is not None and not job.waiting and not job.requeue_requested:
        job.requeue_requested = True
        moved(state, job, at)


def _on_priority(state: State, event: e.JobPriorityChanged, at: str) -> None:
    job = state.jobs.get(event.job)
    if job is not None and job.priority != event.priority:
        job.priority = event.priority
        _noted(state, job, at)


def _on_limit(state: State, event: e.JobLimitChanged, at: str) -> None:
    job = state.jobs.get(event.job)
    if job is not None:
        job.time_limit_seconds = NO_LIMIT if event.time_limit_seconds is None else event.time_limit_seconds
        _noted(state, job, at)


def _noted(state: State, job: Job, at: str) -> None:
    """Name what was asked as the cause of what is decided next; decisions under way stay valid."""
    job.cause = at
    state.touch(f"job/{job.id}")


# ---- about the cluster ----


def _on_queue_changed(state: State, event: e.QueueChanged, _at: str) -> None:
    if event.weight >= 1:
        state.queues[event.tenant] = Queue(event.tenant, event.weight, event.guaranteed, event.ceiling, event.stopped)
        state.touch(f"queue/{event.tenant}")


def _on_drain(state: State, event: e.NodeDrainRequested, _at: str) -> None:
    node = state.nodes.get(event.node)
    if node is not None:
        node.drain_deadline_ns = max(1, event.deadline_ns)  # 0 would be no drain, and it was asked for one
        state.touch(f"node/{node.name}")


def _on_node_resume(state: State, event: e.NodeResumeRequested, _at: str) -> None:
    """End drain and cordon; the failures are forgotten, or the node would be cordoned for them again at once."""
    node = state.nodes.get(event.node)
    if node is not None:
        node.drain_deadline_ns = 0
        node.cordoned = False
        node.failures = []
        state.touch(f"node/{node.name}")


def _on_node_forget(state: State, event: e.NodeForgetRequested, _at: str) -> None:
    node = state.nodes.get(event.node)
    if node is not None:
        state.forget_node(node)


def _on_maintenance_planned(state: State, event: e.MaintenancePlanned, _at: str) -> None:
    """Keep it, and no more than MAINTENANCE_MAX: evolve has no clock, so the event's time says which are over."""
    if event.end_ns <= event.start_ns or not event.nodes:
        return
    others = [planned for planned in state.maintenance.values() if planned.name != event.name]
    over = sorted((m for m in others if m.end_ns <= event.at_ns), key=lambda m: (m.end_ns, m.name))
    surplus = len(others) + 1 - MAINTENANCE_MAX
    if surplus > len(over):
        return
    for old in over[: max(0, surplus)]:
        del state.maintenance[old.name]
        state.touch(f"maintenance/{old.name}")
    state.maintenance[event.name] = Maintenance(event.name, event.nodes, event.start_ns, event.end_ns)
    state.touch(f"maintenance/{event.name}")


def _on_maintenance_cancelled(state: State, event: e.MaintenanceCancelled, _at: str) -> None:
    if state.maintenance.pop(event.name, None) is not None:
        state.touch(f"maintenance/{event.name}")


RULES: dict[type[e.Event], Callable[[State, Any, str], None]] = {
    e.HoldRequested: _on_hold,
    e.ReleaseRequested: _on_release,
    e.SuspendRequested: _on_suspend,
    e.ResumeRequested: _on_resume,
    e.RequeueRequested: _on_requeue,
    e.JobPriorityChanged: _on_priority,
    e.JobLimitChanged: _on_limit,
    e.QueueChanged: _on_queue_changed,
    e.NodeDrainRequested: _on_drain,
    e.NodeResumeRequested: _on_node_resume,
    e.NodeForgetRequested: _on_node_forget,
    e.MaintenancePlanned: _on_maintenance_planned,
    e.MaintenanceCancelled: _on_maintenance_cancelled,
}
