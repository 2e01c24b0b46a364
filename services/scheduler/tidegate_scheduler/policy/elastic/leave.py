"""Who is asked to leave without anybody waiting for the room: by an operator's word, or because a node goes away."""

from __future__ import annotations

import msgspec
from tidegate_events import events as e

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.elastic.sparing import overrun_ns, protected
from tidegate_scheduler.policy.elastic.trial import Trial
from tidegate_scheduler.policy.elastic.victims import Victims
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import Job


def asked_by_operator(draft: Draft, trial: Trial, job: Job) -> None:
    """Ask a running job to leave that an operator suspended or requeued."""
    if job.stage not in ("placed", "running") or job.id in draft.leaving:
        return
    if job.suspend_requested:
        ask(draft, trial, job, e.Reason(code="SuspendRequested", detail="by an operator"))
    elif job.requeue_requested:
        ask(draft, trial, job, e.Reason(code="RequeueRequested", detail="by an operator"))


def clear_nodes(draft: Draft, trial: Trial) -> None:
    """Ask jobs to leave nodes that are drained or come to their maintenance; the protected as late as possible."""
    state = draft.state
    for name in sorted(trial.index.fleet.clearing):
        _clear(draft, trial, _Clearing(name, state.nodes[name].drain_deadline_ns, "NodeDrained", at_once=True))
    for window in sorted(state.maintenance.values(), key=lambda window: (window.start_ns, window.name)):
        if draft.now_ns >= window.end_ns:
            continue
        for name in window.nodes:
            if name not in state.nodes:
                continue
            longest_ns = _longest_grace_ns(trial, trial.index.table.rows[name])
            if longest_ns is None:
                continue
            if draft.now_ns < window.start_ns - longest_ns:
                draft.wake_by(window.start_ns - longest_ns)
            else:
                _clear(draft, trial, _Clearing(name, window.start_ns, "Maintenance", at_once=False))


def relieve(draft: Draft, trial: Trial, victims: Victims) -> None:
    """Ask jobs to leave nodes that came back smaller than what they hold, the cheapest first, until the rest fits."""
    table = trial.index.table
    for row in sorted(trial.index.overfull, key=table.names.__getitem__):
        if draft.state.nodes[table.names[row]].status != "up":
            continue
        staying = [job for job in _on(trial, row) if job.stage in ("placed", "running") and job.id not in draft.leaving]
        for job in sorted(staying, key=victims.cost):
            if draft.full:
                return
            if _crowded(trial, row, staying) or _lacks_devices(trial, row, job):
                staying.remove(job)
                ask(draft, trial, job, e.Reason(code="NodeShrank", detail=f"{table.names[row]} has less than it holds"))


def ask(draft: Draft, trial: Trial, job: Job, reason: e.Reason, *, for_job: str = "") -> None:
    """Ask a job to save and leave within its grace period, to be held then if an operator suspended it."""
    draft.ask_to_leave(job, reason, for_job, hold=job.suspend_requested)
    trial.ask_to_leave(job)


class _Clearing(msgspec.Struct, frozen=True):
    """A node that is to be empty by the deadline, and why; `at_once`: who is not protected leaves now."""

    node: str
    deadline_ns: int
    code: str
    at_once: bool


def _clear(draft: Draft, trial: Trial, clearing: _Clearing) -> None:
    row = trial.index.table.rows[clearing.node]
    for job in sorted(_on(trial, row), key=lambda job: (job.submitted_seq, job.id)):
        if draft.full:
            return
        if job.stage not in ("placed", "running") or job.id in draft.leaving:
            continue
        last_ns = clearing.deadline_ns - draft.state.specs[job.id].preemption.grace_seconds * SECOND_NS
        spared = protected(draft.state, job, draft.now_ns, draft.parameters)
        if draft.now_ns >= last_ns or (clearing.at_once and not spared):
            numbers = {"deadline_ns": clearing.deadline_ns}
            reason = e.Reason(code=clearing.code, detail=f"{clearing.node} is cleared", numbers=numbers)
            ask(draft, trial, job, reason)
        else:
            overrun = overrun_ns(draft.state, job, draft.parameters) if clearing.at_once else None
            draft.wake_by(last_ns if overrun is None else min(last_ns, overrun))


def _longest_grace_ns(trial: Trial, row: int) -> int | None:
    """Return the longest grace of those who are on the row and may stay, None where nobody is.

    Windows are told long before: it is worked out when somebody there changes, and not in each pass.
    """
    index = trial.index
    if row not in index.longest_grace_ns:
        specs = [index.state.specs[job.id] for job in _on(trial, row) if job.stage in ("placed", "running")]
        longest = max([spec.preemption.grace_seconds * SECOND_NS for spec in specs], default=None)
        index.longest_grace_ns[row] = longest
    return index.longest_grace_ns[row]


def _on(trial: Trial, row: int) -> list[Job]:
    return [trial.index.state.jobs[name] for name in trial.index.on_row.get(row, ())]


def _crowded(trial: Trial, row: int, staying: list[Job]) -> bool:
    """Say whether those who stay hold more CPU or memory than there is."""
    index = trial.index
    held = [
        seat.holds(index.state.floors[job.id]) for job in staying for seat in index.seats_of(job.id) if seat.row == row
    ]
    kind = index.table.kinds[row]
    return (
        sum(each.cpu_millis for each in held) > kind.cpu_millis
        or sum(each.memory_mib for each in held) > kind.memory_mib
    )


def _lacks_devices(trial: Trial, row: int, job: Job) -> bool:
    """Say whether the job holds devices that the node has no more."""
    there = trial.index.table.devices[row].all
    name = trial.index.table.names[row]
    return any(
        index not in there
        for member in job.members
        if member.active and member.node == name
        for index in (*member.gpu_indices, *member.lent_gpus)
    )
