"""How CPU is shared on a row where nobody leaves, asks for phases, is slow or may have more simulators.

It is shared as `sharing.share` says. But what that reads of a job is worked out once for as long as the job stays as it
is, and quotas are made only for those whose change: many more are there than come or go.
"""

from __future__ import annotations

import msgspec
from tidegate_events.events import Quota
from tidegate_events.spec import DEFAULT_PHASE

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy import sharing
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.replicas import scalable
from tidegate_scheduler.state import LEAVING_STAGES, Job, Member, State

Order = tuple[int, int, str]


class Sharer(msgspec.Struct, frozen=True, gc=False):
    """A member on a row. `has` is the CPU of its components, empty where its quotas are not what `lend` would make."""

    row: int
    order: Order
    job: Job
    member: Member
    part: sharing.Part
    has: tuple[int, ...]


class Shared(msgspec.Struct, frozen=True, gc=False):
    """The quotas of those who come, and of those who are there and get others, as they were submitted."""

    coming: dict[tuple[str, int], tuple[Quota, ...]]
    changed: list[tuple[Job, Member, tuple[Quota, ...]]]


def shared(draft: Draft, index: Index, row: int, coming: list[tuple[Job, int]]) -> Shared | None:
    """Return how the row is shared among who is there and who comes, None where more has to be looked at for that."""
    state = draft.state
    there = _there(draft, index, row)
    if there is None or any(not _is_plain(state, job) for job, _ in coming):
        return None
    turns: list[tuple[Order, int, sharing.Part, Sharer | Job]] = [
        (each.order, each.member.rank, each.part, each) for each in there
    ]
    for job, rank in coming:
        turns.append((order_of(job), rank, sharing.part_of(state.specs[job.id], DEFAULT_PHASE), job))
    turns.sort(key=_turn)
    found, changed = Shared({}, []), list[tuple[Sharer, tuple[int, ...]]]()
    granted = sharing.lend(index.table.kinds[row].cpu_millis, [part for _, _, part, _ in turns])
    for (_, rank, _, who), millis in zip(turns, granted, strict=True):
        if not isinstance(who, Sharer):
            found.coming[who.id, rank] = sharing.plain_quotas(state.specs[who.id], DEFAULT_PHASE, millis)
        elif who.has != millis:
            changed.append((who, millis))
    for each, millis in sorted(changed, key=lambda one: (one[0].job.submitted_seq, one[0].job.id, one[0].member.rank)):
        quotas = sharing.plain_quotas(state.specs[each.job.id], each.member.phase, millis)
        found.changed.append((each.job, each.member, quotas))
    return found


def order_of(job: Job) -> Order:
    """Return in which order jobs are lent to."""
    return -job.priority, job.submitted_seq, job.id


def _turn(each: tuple[Order, int, sharing.Part, Sharer | Job]) -> tuple[Order, int]:
    return each[0], each[1]


def _there(draft: Draft, index: Index, row: int) -> list[Sharer] | None:
    """Return the members on the row, None where one of them is not as most are."""
    if row in index.scaled or row in index.asking.on_row:
        return None
    found: list[Sharer] = []
    for name in index.on_row.get(row, ()):
        if name in draft.leaving:
            return None
        if name not in index.sharers:
            index.sharers[name] = _sharers(index, draft.state.jobs[name])
        sharers = index.sharers[name]
        if sharers is None:
            return None
        found += sharers if len(sharers) == 1 else [each for each in sharers if each.row == row]
    return found


def _sharers(index: Index, job: Job) -> tuple[Sharer, ...] | None:
    """Return the members of a job, None where more than their phases decides what they get."""
    state, rows = index.state, index.table.rows
    spec = state.specs[job.id]
    if job.stage in LEAVING_STAGES or scalable(spec) or not _is_plain(state, job):
        return None
    order, found = order_of(job), []
    for member in job.members:
        if member.active and member.node in rows:
            millis = tuple([quota.cpu_millis for quota in member.quotas])
            is_plain = len(millis) == len(spec.components)
            is_plain = is_plain and member.quotas == sharing.plain_quotas(spec, member.phase, millis)
            part = sharing.part_of(spec, member.phase)
            found.append(Sharer(rows[member.node], order, job, member, part, millis if is_plain else ()))
    return tuple(found)


def _is_plain(state: State, job: Job) -> bool:
    return not (job.slow or job.raised_steps) and state.specs[job.id].phase_entry != "asked"
