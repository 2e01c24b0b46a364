"""Borrowers that wait long for a phase move to a node that has what they wait for, and where less is asked for.

Where nodes were filled evenly, jobs that end leave them uneven: one idles while borrowers take turns on another. Who
moves saves, leaves and resumes there, which costs it seconds. So it must have waited for longer than that, have saved
a checkpoint before, have been where it is for a while, and be in no phase that it would have to leave.

Only jobs of one member move: to move a gang is seldom worth what it costs all of its members.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tidegate_events import events as e
from tidegate_events.resources import Resources

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.elastic import leave
from tidegate_scheduler.policy.elastic.emptiest import emptiest
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.peaks import load, peak_of
from tidegate_scheduler.policy.elastic.physical import Need, asking_on, need_of
from tidegate_scheduler.policy.elastic.shapes import Fit
from tidegate_scheduler.policy.elastic.table import CPU, GPUS, MEMORY
from tidegate_scheduler.policy.elastic.trial import Trial
from tidegate_scheduler.policy.elastic.victims import Victims
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import Job, Member

STAYS_NS = 600 * SECOND_NS
"""How long a job stays where it is before it moves: what a move costs is a small part of that."""

JOBS_LOOKED_AT_MAX = 16
"""Borrowers for which one pass looks for another node: those that asked first."""

NODES_LOOKED_AT_MAX = 32
NODES_PER_MOVE = 8
"""One job for so many nodes moves at a time, but always one: where who moves will come to is not known before."""

Barred = Callable[[Job], frozenset[int]]


def rebalance(draft: Draft, trial: Trial, victims: Victims, barred: Barred) -> None:
    """Ask borrowers to leave that would be granted elsewhere what they wait for; `barred` are rows not to move to."""
    after_ns = draft.parameters.rebalance_after_seconds * SECOND_NS
    if not after_ns:
        return
    index = trial.index
    due = list[tuple[int, int, str]]()
    for name in index.asking.waiting:
        job = index.state.jobs[name]
        if not _may_move(index, job, draft) or victims.spared(job):
            continue
        due_ns = max(job.members[0].wanted_ns + after_ns, job.started_ns + STAYS_NS)
        if draft.now_ns < due_ns:
            draft.wake_by(due_ns)
        else:
            due.append((job.members[0].wanted_ns, job.submitted_seq, name))
    left = max(1, len(index.fleet.up) // NODES_PER_MOVE) - _moving(index) if due else 0
    taken = _waited_on(index) if left > 0 else set()
    for _, _, name in sorted(due)[:JOBS_LOOKED_AT_MAX]:
        if left <= 0 or draft.full:
            return
        job = index.state.jobs[name]
        row = _better(trial, job, barred(job) | taken)
        if row is not None:
            taken.add(row)
            left -= 1
            _move(draft, trial, job, row)


def _may_move(index: Index, job: Job, draft: Draft) -> bool:
    """Say whether the job is one that may be moved at some time, as it is now."""
    spec = index.state.specs[job.id]
    if not spec.borrows or spec.gang_size > 1 or job.stage != "running" or job.id in draft.leaving:
        return False
    if job.held or job.suspend_requested or job.requeue_requested or job.cancel_requested:
        return False
    if job.newest_checkpoint is None or index.share(job.tenant).stopped:
        return False
    member, floor = job.members[0], index.state.floors[job.id]
    idle = member.leased is None and member.extra is None and not member.hand_back_ns
    return idle and need_of(spec, member.wanted).beyond(floor) != Resources()


def _moving(index: Index) -> int:
    """Return how many are on their way out for this."""
    names = {name for row in index.left for name in index.on_row.get(row, ()) if index.leaving(name)}
    return sum(index.state.jobs[name].stop_reason == "Rebalanced" for name in names)


def _waited_on(index: Index) -> set[int]:
    """Return the rows on which somebody waits for a phase."""
    rows, jobs = index.table.rows, index.state.jobs
    return {rows[each.node] for name in index.asking.waiting for each in jobs[name].members if each.node in rows}


def _better(trial: Trial, job: Job, barred: frozenset[int]) -> int | None:
    """Return the row where the job would be granted its phase now and least is asked for, None where there is none."""
    index, member = trial.index, job.members[0]
    here, fit = index.table.rows[member.node], index.fit(index.line_key(job).shape)
    load_here = _load(trial, fit, here, joins=False)
    if load_here <= load((0, 0, 0), (1, 1, 1)):
        return None  # all of them can have their phases there at once
    need = need_of(index.state.specs[job.id], member.wanted)
    found = [
        (load_there, index.table.names[row], row)
        for row in _candidates(trial, fit, need, barred)
        if (load_there := _load(trial, fit, row, joins=True)) < load_here and _grants(index, row, job, need)
    ]
    return min(found)[2] if found else None


def _candidates(trial: Trial, fit: Fit, need: Need, barred: frozenset[int]) -> list[int]:
    """Return rows on which nobody waits and as much may be taken as the phase needs."""
    table = trial.index.table
    now = table.now[:, : len(table)]
    able = fit.suits() & fit.enough(now) & (now[CPU] >= need.cpu_millis) & (now[GPUS] >= need.gpus)
    able &= now[MEMORY] >= max(need.memory_mib, fit.shape.need.memory_mib)
    able[list(barred)] = False
    rows = np.flatnonzero(able)
    return emptiest(table, rows, NODES_LOOKED_AT_MAX).tolist() if len(rows) else []


def _grants(index: Index, row: int, job: Job, need: Need) -> bool:
    """Say whether neither devices nor CPU are lent there that the phase needs."""
    one = Resources(gpus=1, gpu_memory_mib=need.gpu_memory_mib)
    if need.gpu_millis:
        return False  # which part of which device it would be granted is not looked at
    if need.gpus and len(index.table.devices[row].at_hand(one, index.state.specs[job.id].gpu_models)) < need.gpus:
        return False
    lent_millis = sum(_leased_millis(member) for _, member in asking_on(index, row))
    return index.table.now_on(row)[CPU] - lent_millis >= need.cpu_millis


def _leased_millis(member: Member) -> int:
    return member.leased.cpu_millis if member.leased is not None else 0


def _load(trial: Trial, fit: Fit, row: int, *, joins: bool) -> int:
    """Return what is asked for of a row when all there ask for all; `joins`: and the job too."""
    table = trial.index.table
    more = peak_of((fit.shape.need, *fit.shape.phases)) if joins else (0, 0, 0)
    left = [have - own - new for have, own, new in zip(table.now_on(row), table.peaks.on(row), more, strict=False)]
    kind = table.kinds[row]
    return load(left, (kind.cpu_millis, kind.memory_mib, len(table.devices[row].all)))


def _move(draft: Draft, trial: Trial, job: Job, row: int) -> None:
    member = job.members[0]
    numbers = {"waited_seconds": (draft.now_ns - member.wanted_ns) // SECOND_NS}
    detail = f"it waits for {member.wanted} on {member.node}, and {trial.index.table.names[row]} has what that needs"
    leave.ask(draft, trial, job, e.Reason(code="Rebalanced", detail=detail, numbers=numbers))
