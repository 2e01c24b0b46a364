"""Who uses room meanwhile that is kept for others until it is their turn, and gives it back when that comes.

A job is let in if it has certainly left before: by its own time limit, counted from the latest moment at which it may
start. It is known for whom the room is kept that it has, since what was certain may change: an operator raises its
limit. Then it is asked to leave in time for those all the same, whoever it is, if it is in their way.
"""

from __future__ import annotations

from tidegate_events import events as e

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.elastic import leave
from tidegate_scheduler.policy.elastic.devices import accepts, use
from tidegate_scheduler.policy.elastic.fit import rows_in
from tidegate_scheduler.policy.elastic.holders import NEVER
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.shapes import Fit
from tidegate_scheduler.policy.elastic.spread import Locality, Rows
from tidegate_scheduler.policy.elastic.trial import Trial
from tidegate_scheduler.policy.limits import ends_by_ns, time_limit_seconds
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import Job


def find(draft: Draft, trial: Trial, job: Job, fit: Fit, barred: frozenset[int]) -> Rows | None:
    """Return where the job fits beside and into room that is kept for others, if it has left before they come."""
    longest_ns = stays_ns(draft, job)
    usable = _usable_until(trial, draft.now_ns + longest_ns) if longest_ns is not None else None
    if not usable:
        return None
    table, among = trial.index.table, sorted(usable)
    locality = Locality(near=table.rows.get(job.saved_on, -1))
    if fit.shape.gang_size == 1:
        rows = rows_in(fit, table.free, barred, among=among, locality=locality, which="free")
    else:
        room = table.now.copy()
        room[:, among] = table.free[:, among]
        rows = rows_in(fit, room, barred, locality=locality, which="free")
    if rows is not None:
        used = usable.intersection(rows)
        trial.backfills[job.id] = tuple(
            sorted(name for name, kept in trial.promises.items() if not used.isdisjoint(kept))
        )
    return rows


def reclaim(draft: Draft, trial: Trial) -> None:
    """Ask those to leave who were let in meanwhile, and are still there when those come for whom the room is kept."""
    jobs = draft.state.jobs
    for job in sorted((jobs[name] for name in trial.index.backfilling), key=lambda job: (job.submitted_seq, job.id)):
        if draft.full:
            return
        if job.stage in ("placed", "running") and job.id not in draft.leaving:
            _reclaim(draft, trial, job)


def _reclaim(draft: Draft, trial: Trial, job: Job) -> None:
    there = {seat.row for seat in trial.index.seats_of(job.id)}
    grace_ns = draft.state.specs[job.id].preemption.grace_seconds * SECOND_NS
    for name in job.backfills:
        owner = draft.state.jobs.get(name)
        if owner is None or not owner.reserved_start_ns:
            continue
        rows = sorted(there.intersection(trial.promises.get(name, ())))
        if not rows:
            continue
        due_ns = owner.reserved_start_ns - grace_ns
        if draft.now_ns < due_ns:
            draft.wake_by(due_ns)
        elif any(in_the_way(trial, row, job, owner) for row in rows):
            detail = f"{name} comes, for whom the room is kept"
            reason = e.Reason(code="Backfilled", detail=detail, numbers={"start_ns": owner.reserved_start_ns})
            leave.ask(draft, trial, job, reason, for_job=name)
            return


def stays_ns(draft: Draft, job: Job) -> int | None:
    """Return how long a job stays at most once it is placed; None: it declares no limit."""
    limit, parameters = time_limit_seconds(job, draft.state.specs[job.id]), draft.parameters
    if limit is None:
        return None
    return (parameters.start_timeout_seconds + limit + parameters.stop_grace_seconds_max) * SECOND_NS - job.ran_ns


def in_the_way(trial: Trial, row: int, job: Job, owner: Job) -> bool:
    """Say whether the owner of room on the row lacks some of it while the job stays, when all others have left.

    The others are those who end before the owner comes; of what is promised there, what others have later is not
    counted.
    """
    index, start_ns = trial.index, owner.reserved_start_ns
    devices, (cpu, memory, *_) = index.table.devices[row], index.table.later_on(row)
    used_millis, promised = dict(devices.staying_millis), devices.promised
    for name in index.on_row.get(row, ()):
        other = index.state.jobs[name]
        if other is not job and not index.leaving(name) and name not in trial.asked and _ends(index, other) <= start_ns:
            for seat in index.seats_of(name):
                if seat.row == row:
                    need = seat.holds(index.state.floors[name])
                    cpu, memory = cpu + need.cpu_millis, memory + need.memory_mib
                    use(used_millis, devices, need, seat.gpu_indices, -1)
    for name, rows in trial.promises.items():
        if name != owner.id and (index.state.jobs[name].reserved_start_ns or NEVER) > start_ns:
            need, count = index.state.floors[name], rows.count(row)
            cpu, memory = cpu + count * need.cpu_millis, memory + count * need.memory_mib
            promised -= count * (need.gpus or (1 if need.gpu_millis else 0))
    if row in index.table.mixed:
        need, models = index.state.floors[owner.id], index.state.specs[owner.id].gpu_models
        unused = sum(accepts(gpu, need, models) for gpu in devices.order if gpu.index not in used_millis)
        wanted = trial.promises[owner.id].count(row) * (need.gpus or (1 if need.gpu_millis else 0))
        if unused < wanted:
            return True
    return cpu < 0 or memory < 0 or len(devices.all) - len(used_millis) < promised


def _ends(index: Index, job: Job) -> int:
    ends = ends_by_ns(job, index.state.specs[job.id])
    return NEVER if ends is None else ends


def _usable_until(trial: Trial, until_ns: int) -> set[int]:
    """Return the rows on which the first room that is kept is kept for a time after `until_ns`, which is known."""
    soonest: dict[int, int] = {}
    index = trial.index
    for name, rows in trial.promises.items():
        job, nodes = index.state.jobs[name], sorted(index.table.names[row] for row in rows)
        # Of room that this very pass keeps nobody has been told since when.
        start_ns = (job.reserved_start_ns or NEVER) if nodes == sorted(job.reserved_nodes) else 0
        for row in rows:
            soonest[row] = min(soonest.get(row, NEVER), start_ns)
    return {row for row, start_ns in soonest.items() if until_ns < start_ns < NEVER}
