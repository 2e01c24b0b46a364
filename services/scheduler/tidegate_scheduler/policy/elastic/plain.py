"""How CPU is shared on a row where nobody leaves, asks for phases, is slow or may have more simulators.

It is shared as `sharing.share` says. But what that reads of a job is worked out once for as long as the job stays as it
is, and quotas are made only for those whose change: many more are there than come or go.
"""

from __future__ import annotations

from operator import itemgetter

import msgspec
from tidegate_events.events import Quota
from tidegate_events.spec import DEFAULT_PHASE, JobSpec

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy import sharing
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.replicas import scalable
from tidegate_scheduler.state import LEAVING_STAGES, Job, Member

Order = tuple[int, int, str]

Turn = tuple[int, int, str, int]
"""When a member is lent to: the order of its job, and its rank."""


class Sharer(msgspec.Struct, frozen=True, gc=False):
    """A member on a row. `has` is the CPU of its components, empty where its quotas are not what `lend` would make."""

    row: int
    turn: Turn
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
    there = _there(draft, index, row)
    if there is None:
        return None
    turns: list[tuple[Turn, sharing.Part, Sharer | None]] = [(each.turn, each.part, each) for each in there]
    for job, rank in coming:
        spec = draft.state.specs[job.id]
        if not _is_plain(spec, job):
            return None
        turns.append(((*order_of(job), rank), sharing.part_of(spec, DEFAULT_PHASE), None))
    turns.sort(key=_first)
    found = Shared({}, [])
    changed: list[tuple[Sharer, tuple[int, ...]]] = []
    granted = sharing.lend(index.table.kinds[row].cpu_millis, [part for _, part, _ in turns])
    for (turn, part, sharer), millis in zip(turns, granted, strict=True):
        if sharer is None:
            found.coming[turn[2:]] = sharing.part_quotas(part, millis)
        elif sharer.has != millis:
            changed.append((sharer, millis))
    for each, millis in sorted(changed, key=_as_submitted):
        found.changed.append((each.job, each.member, sharing.part_quotas(each.part, millis)))
    return found


_first = itemgetter(0)


def _as_submitted(change: tuple[Sharer, tuple[int, ...]]) -> tuple[int, str, int]:
    job = change[0].job
    return job.submitted_seq, job.id, change[0].member.rank


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
    rows, spec = index.table.rows, index.state.specs[job.id]
    if job.stage in LEAVING_STAGES or scalable(spec) or not _is_plain(spec, job):
        return None
    order, found = order_of(job), []
    for member in job.members:
        row = rows.get(member.node)
        if row is not None and member.active:
            part = sharing.part_of(spec, member.phase)
            has = sharing.part_millis(part, member.quotas)
            found.append(Sharer(row, (*order, member.rank), job, member, part, has))
    return tuple(found)


def _is_plain(spec: JobSpec, job: Job) -> bool:
    return not (job.slow or job.raised_steps) and spec.phase_entry != "asked"
