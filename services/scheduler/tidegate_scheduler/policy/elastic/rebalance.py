"""Borrowers that wait long for a phase move to a node that has what they wait for, and where less is asked for.

Where nodes were filled evenly, jobs that end leave them uneven: one idles while borrowers take turns on another. Who
moves saves, leaves and resumes there, which costs it seconds. So it must have waited for longer than that, have saved
a checkpoint before, have been where it is for a while, and be in no phase that it would have to leave.

Only jobs of one member move: to move a gang is seldom worth what it costs all of its members.
"""

from __future__ import annotations

import numpy as np
from tidegate_events import events as e
from tidegate_events.resources import Resources

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.moves import stays_until_ns
from tidegate_scheduler.policy.elastic import leave, replicas
from tidegate_scheduler.policy.elastic.barred import RowsFor
from tidegate_scheduler.policy.elastic.claims import spare_mib
from tidegate_scheduler.policy.elastic.devices import accepts
from tidegate_scheduler.policy.elastic.emptiest import emptiest
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.peaks import LOAD_WHOLE
from tidegate_scheduler.policy.elastic.physical import asking_on, need_of
from tidegate_scheduler.policy.elastic.shapes import Fit
from tidegate_scheduler.policy.elastic.table import CPU, GPUS, MEMORY, SHARE
from tidegate_scheduler.policy.elastic.trial import Trial
from tidegate_scheduler.policy.elastic.victims import Victims
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import Job, Member

JOBS_LOOKED_AT_MAX = 16
"""Borrowers for which one pass looks for another node. Where there are more, each pass begins with others of them."""

LOOKS_AGAIN_NS = 10 * SECOND_NS
"""When a pass is due that looks at those whom this one has not looked at."""

GOLDEN_BITS, GOLDEN = 32, 2654435769
"""The golden ratio in 2**32 parts: however far passes are apart, what these add up to goes round evenly."""

NODES_LOOKED_AT_MAX = 32
NODES_PER_MOVE = 8
"""One job for so many nodes moves at a time, but always one: where who moves will come to is not known before."""


def rebalance(draft: Draft, trial: Trial, victims: Victims, barred: RowsFor) -> None:
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
        due_ns = max(job.members[0].wanted_ns + after_ns, stays_until_ns(job))
        if draft.now_ns < due_ns:
            draft.wake_by(due_ns)
        else:
            due.append((job.members[0].wanted_ns, job.submitted_seq, name))
    left = max(1, len(index.fleet.up) // NODES_PER_MOVE) - _moving(index) if due else 0
    taken = _waited_on(index) if left > 0 else set()
    for _, _, name in _looked_at(draft, sorted(due)) if left > 0 else ():
        if left <= 0 or draft.full:
            return
        job = index.state.jobs[name]
        row = _better(draft, trial, job, barred(job) | taken)
        if row is not None:
            taken.add(row)
            left -= 1
            _move(draft, trial, job, row)


def _looked_at(draft: Draft, due: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Return those of them that this pass looks at: all, or so many that follow each other, from pass to pass others.

    Else those who asked first, if they can move nowhere, would keep all others from moving.
    """
    if len(due) <= JOBS_LOOKED_AT_MAX:
        return due
    draft.wake_by(draft.now_ns + LOOKS_AGAIN_NS)
    turn = draft.now_ns // SECOND_NS * GOLDEN % (1 << GOLDEN_BITS)
    begin = turn * len(due) >> GOLDEN_BITS
    return (due[begin:] + due[:begin])[:JOBS_LOOKED_AT_MAX]


def _may_move(index: Index, job: Job, draft: Draft) -> bool:
    """Say whether the job is one that may be moved at some time, as it is now."""
    spec = index.state.specs[job.id]
    if not spec.borrows or spec.gang_size > 1 or job.stage != "running" or job.id in draft.leaving:
        return False  # whom an operator or a user asks to leave is leaving by now
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


def _better(draft: Draft, trial: Trial, job: Job, barred: frozenset[int]) -> int | None:
    """Return the row where the job would be granted its phase now and least is asked for, None where there is none."""
    index, table = trial.index, trial.index.table
    here, fit = table.rows[job.members[0].node], index.fit(index.line_key(job).shape)
    load_here = fit.load(table.now_on(here), here, members=0)
    if load_here <= LOAD_WHOLE:
        return None  # all of them can have their phases there at once
    needs = _needs(index, job)
    found = [
        (load_there, table.names[row], row)
        for row in _candidates(fit, needs, barred)
        if (load_there := fit.load(table.now_on(row), row, members=1)) < load_here
        and _grants(trial, row, fit, needs, draft.now_ns)
    ]
    return min(found)[2] if found else None


def _needs(index: Index, job: Job) -> Resources:
    """Return what the job needs to be placed and be granted its phase: the most of its floor and of that."""
    floor, need = index.state.floors[job.id], need_of(index.state.specs[job.id], job.members[0].wanted)
    return Resources(
        max(floor.cpu_millis, need.cpu_millis),
        max(floor.memory_mib, need.memory_mib),
        max(floor.gpus, need.gpus),
        gpu_memory_mib=max(floor.gpu_memory_mib, need.gpu_memory_mib),
        gpu_millis=max(floor.gpu_millis, need.gpu_millis),
    )


def _candidates(fit: Fit, needs: Resources, barred: frozenset[int]) -> list[int]:
    """Return rows on which nobody waits and as much may be taken as is needed."""
    now = fit.table.now[:, : len(fit.table)]
    able = fit.members(fit.table.now) > 0
    for amount, each in ((CPU, needs.cpu_millis), (MEMORY, needs.memory_mib), (GPUS, needs.gpus)):
        if each:  # of others less than nothing may be left behind what is kept
            able &= now[amount] >= each
    if needs.gpu_millis:
        able &= (now[GPUS] > 0) | (now[SHARE] >= needs.gpu_millis)
    able[list(barred)] = False
    rows = np.flatnonzero(able)
    return emptiest(fit.table, rows, NODES_LOOKED_AT_MAX).tolist() if len(rows) else []


def _grants(trial: Trial, row: int, fit: Fit, needs: Resources, now_ns: int) -> bool:
    """Say whether all of it is there, not only held by nobody: nobody has it leased, and no simulators are in it."""
    index = trial.index
    lent_millis = sum(_leased_millis(member) for _, member in asking_on(index, row))
    if index.table.now_on(row)[CPU] - lent_millis < needs.cpu_millis:
        return False
    simulators_mib, _ = replicas.held(index, row, now_ns)
    return spare_mib(index, row, simulators_mib) >= needs.memory_mib and _devices_there(fit, row, needs)


def _leased_millis(member: Member) -> int:
    return member.leased.cpu_millis if member.leased is not None else 0


def _devices_there(fit: Fit, row: int, needs: Resources) -> bool:
    """Say whether as many devices are there, or such a part of the one device that the job would get a part of."""
    table, shape = fit.table, fit.shape
    devices, one = table.devices[row], Resources(gpus=1, gpu_memory_mib=needs.gpu_memory_mib)
    whole = devices.at_hand(one, shape.gpu_models)
    if not needs.gpu_millis:
        return len(whole) >= needs.gpus
    begins = table.now_on(row)[GPUS] > 0
    able = {gpu.index for gpu in whole if begins}
    for index in devices.used_millis:
        there = index in devices.all and accepts(devices.all[index], one, shape.gpu_models)
        if there and devices.here_of(index) >= needs.gpu_millis:
            able.add(index)
    if able and shape.need.gpu_millis:
        return table.take(row, shape.need, shape.gpu_models, fit.share_millis)[0] in able
    return bool(able)


def _move(draft: Draft, trial: Trial, job: Job, row: int) -> None:
    member = job.members[0]
    numbers = {"waited_seconds": (draft.now_ns - member.wanted_ns) // SECOND_NS}
    detail = f"it waits for {member.wanted} on {member.node}, and {trial.index.table.names[row]} has what that needs"
    leave.ask(draft, trial, job, e.Reason(code="Rebalanced", detail=detail, numbers=numbers))
