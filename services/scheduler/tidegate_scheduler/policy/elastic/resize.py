"""How each node's CPU is shared among those who are there and those who come; only nodes on which something changed.

Who gets less comes first, then who is placed, then who gets more: wherever a full pass is cut off, what was decided
fits. Who needs more than it has for its phase gets it at once; what is merely lent is handed out at most once in
`lend_interval_seconds`, so that quotas do not flap. Jobs that are slower than they must be have their share raised in
steps (`raising.py`), before the others are lent anything.
"""

from __future__ import annotations

from typing import Any

from tidegate_events import events as e
from tidegate_events.spec import DEFAULT_PHASE

from tidegate_scheduler import raising
from tidegate_scheduler.draft import Draft
from tidegate_scheduler.leasing import share_millis
from tidegate_scheduler.policy import sharing
from tidegate_scheduler.policy.elastic import plain, replicas
from tidegate_scheduler.policy.elastic.entries import Seat
from tidegate_scheduler.policy.elastic.index import SharedRow
from tidegate_scheduler.policy.elastic.lend import Lending
from tidegate_scheduler.policy.elastic.plain import order_of
from tidegate_scheduler.policy.elastic.terms import Terms, first_limits, own_millis, phase_reasons, share_of
from tidegate_scheduler.policy.elastic.trial import Trial
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import LEAVING_STAGES, Job, Member

_OnRow = tuple[int, list[tuple[Job, Member]], list[tuple[Job, int]]]
"""A row, who is there, and who comes."""

Placements = list[tuple[Job, tuple[Seat, ...]]]
_Shares = dict[tuple[str, int], tuple[e.Quota, ...]]
_Change = tuple[Job, Member, tuple[e.Quota, ...], Terms | None]


class _Changes:
    """Who gets less, who gets more, and who may enter a phase, those of one job together."""

    def __init__(self) -> None:
        self.less: list[_Change] = []
        self.more: list[_Change] = []
        self.grants: dict[str, list[_Change]] = {}


def resize(draft: Draft, trial: Trial, placements: Placements) -> _Shares:
    """Decide the placements with their quotas, and what changes for those who are there; return the quotas.

    A row on which somebody is placed and nobody there has others than before is looked at no more: it is as it was left
    when that is folded, or the index has it looked at.
    """
    shares: _Shares = {}
    changes = _Changes()
    coming = _coming(placements)
    index, tried, disturbed = trial.index, trial.changed(), trial.disturbed()
    earlier, index.shared = index.shared, {}
    _rouse(draft, trial)
    index.unshared |= dict.fromkeys(tried)  # until one of them is found to be at rest
    rows = sorted(index.unshared, key=index.table.names.__getitem__)
    lending = Lending(draft, trial, len(placements)).run(rows)
    for row in rows:
        new = coming.get(row, [])
        if not index.elastic_on(row) and not any(index.elastic(job.id) for job, _ in new):
            # Nobody here can have more or less than it was placed with.
            shares |= {(job.id, rank): sharing.fixed(draft.state.specs[job.id]) for job, rank in new}
            index.unshared.pop(row, None)
            continue
        if (plainly := plain.shared(draft, index, row, new)) is not None:
            shares |= plainly.coming
            if not plainly.changed and row not in disturbed:
                index.unshared.pop(row, None)
            for job, member, quotas in plainly.changed:
                _sort(draft, (job, member, quotas, None), lending, changes)
            continue
        there = _members(trial, row)
        found = _shared(draft, trial, (row, there, new), (lending, earlier))
        shares |= found
        here = [
            change
            for job, member in there
            if _changes(change := (job, member, found[job.id, member.rank], lending.terms.get((job.id, member.rank))))
        ]
        waits = _awaits_memory(draft, trial, row) or _awaits_step(draft, there) or row in lending.restless
        if not waits and not here and row not in tried:
            index.unshared.pop(row, None)
            if any(job.raised_steps for job, _ in there):
                index.settling.rested[row] = draft.now_ns
        for change in here:
            _sort(draft, change, lending, changes)
    _add(draft, trial, placements, (shares, changes))
    return shares


def _changes(change: _Change) -> bool:
    """Say whether the member has other quotas, or has them on other terms."""
    _, member, quotas, terms = change
    return quotas != member.quotas or (terms is not None and terms.differ(member))


def _add(draft: Draft, trial: Trial, placements: Placements, found: tuple[_Shares, _Changes]) -> None:
    """Decide all of it, in the order in which a part of it fits too."""
    shares, changes = found
    for change in changes.less:
        if draft.full:
            return
        _add_quota(draft, change)
    for job, seats in placements:
        if draft.full:
            return
        _add_placement(draft, trial, (job, seats), shares)
    for change in changes.more:
        if draft.full:
            return
        _add_quota(draft, change)
    for name, together in changes.grants.items():
        if draft.full:
            return
        # What a gang borrows is decided as a whole, however many they are: the gateway bounds it, so a frame holds it.
        as_a_whole = draft.state.specs[name].borrows
        for change in together:
            if not as_a_whole and draft.full:
                return
            _add_quota(draft, change)


def _coming(placements: Placements) -> dict[int, list[tuple[Job, int]]]:
    """Return who comes to which row."""
    coming: dict[int, list[tuple[Job, int]]] = {}
    for job, seats in placements:
        for rank, seat in enumerate(seats):
            coming.setdefault(seat.row, []).append((job, rank))
    return coming


def _awaits_memory(draft: Draft, trial: Trial, row: int) -> bool:
    """Say whether memory comes back to the row, with which more simulators may be added then."""
    back_ns = replicas.returning(trial.index, row, draft.now_ns)[1]
    if back_ns:
        draft.wake_by(back_ns)
    return bool(back_ns)


def _rouse(draft: Draft, trial: Trial) -> None:
    """Look again at rows that are at rest by a later time than this: somebody asked about that one meanwhile."""
    index = trial.index
    for row, by_ns in list(index.settling.rested.items()):
        if row in index.unshared or draft.now_ns < by_ns:
            del index.settling.rested[row]
            index.unshared[row] = None


def _awaits_step(draft: Draft, there: list[tuple[Job, Member]]) -> bool:
    """Say whether the share of somebody there is raised, or lowered again, by the time alone."""
    due = [raising.next_step_ns(job, draft.now_ns) for job, _ in there if job.raised_steps]
    for due_ns in due:
        if due_ns is not None:
            draft.wake_by(due_ns)
    return any(due)


def _members(trial: Trial, row: int) -> list[tuple[Job, Member]]:
    """Return who holds room on the row, in the order of their submission."""
    index, name = trial.index, trial.index.table.names[row]
    jobs = sorted(
        (index.state.jobs[each] for each in index.on_row.get(row, ())), key=lambda job: (job.submitted_seq, job.id)
    )
    return [(job, member) for job in jobs for member in job.members if member.active and member.node == name]


def _shared(draft: Draft, trial: Trial, on: _OnRow, known: tuple[Lending, dict[int, SharedRow]]) -> _Shares:
    (row, there, coming), (lending, earlier) = on, known
    state, capacity_millis = draft.state, trial.index.table.kinds[row].cpu_millis
    room = replicas.room_on(trial, row)
    members = [
        sharing.Seated(
            job.id,
            member.rank,
            member.phase
            if (terms := lending.terms.get((job.id, member.rank))) is None
            else terms.granted or member.phase,
            order_of(job),
            member.quotas if _leaves(draft, job) else None,
            replicas.kept(state.specs[job.id], member, room),
            None if terms is None else terms.limits,
            None if terms is None else own_millis(state.floors[job.id], terms),
            raising.steps_at(job, draft.now_ns) * 1000 // raising.STEPS_MAX,
        )
        for *_, job, member in sorted(
            (not _leaves(draft, job), order_of(job), member.rank, job, member) for job, member in there
        )
    ]
    members += [
        sharing.Seated(job.id, rank, DEFAULT_PHASE, order_of(job), limits=first_limits(state.specs[job.id]))
        for job, rank in coming
    ]
    room.memory_mib = lending.unused_mib(row, replicas.unused_mib(trial, row, draft.now_ns))
    return replicas.grown(state, room, capacity_millis, members, _share(trial, row, members, earlier, bool(coming)))


def _share(
    trial: Trial, row: int, members: list[sharing.Seated], earlier: dict[int, SharedRow], placed: bool
) -> _Shares:
    """Share the CPU of a row; where somebody is placed, it is remembered: the next pass sees the same who is there."""
    index = trial.index
    capacity_millis = index.table.kinds[row].cpu_millis
    known = earlier.get(row)
    if known is not None and known[0] == capacity_millis and known[1] == members:
        return dict(known[2])
    shares = sharing.share(index.state, capacity_millis, members)
    if placed:
        index.shared[row] = (capacity_millis, members, dict(shares))
    return shares


def _leaves(draft: Draft, job: Job) -> bool:
    return job.stage in LEAVING_STAGES or job.id in draft.leaving


def _sort(draft: Draft, change: _Change, lending: Lending, changes: _Changes) -> None:
    """Put a change where it belongs, unless it would lend again too soon: then it waits."""
    job, member, quotas, _ = change
    if (job.id, member.rank) in lending.granted.get(job.id, ()):
        changes.grants.setdefault(job.id, []).append(change)
        return
    spec = draft.state.specs[job.id]
    has = sharing.quota_millis(spec, member.quotas)
    if sharing.quota_millis(spec, quotas) <= has:
        changes.less.append(change)
        return
    due_ns = member.resized_ns + draft.parameters.lend_interval_seconds * SECOND_NS
    if member.resized_ns and draft.now_ns < due_ns and not _in_need(draft, job, member):
        draft.wake_by(due_ns)
        return
    changes.more.append(change)


def _in_need(draft: Draft, job: Job, member: Member) -> bool:
    """Say whether a component has less than its phase is guaranteed."""
    had = {quota.component: quota.cpu_millis for quota in member.quotas}
    components = draft.state.specs[job.id].components
    return any(had.get(each.name, 0) < each.range_in(member.phase).minimum.cpu_millis for each in components)


def _add_quota(draft: Draft, change: _Change) -> None:
    job, member, quotas, terms = change
    spec = draft.state.specs[job.id]
    why = (*_raised(draft, job, member, quotas), *replicas.reasons(spec, member.quotas, quotas))
    about: dict[str, Any] = {}
    if terms is not None:
        why = (*phase_reasons(member, terms), *why)
        about = {"phase": terms.granted, "leased": terms.leased, "extra": terms.extra}
        if terms.gpu_indices != member.gpu_indices:
            about["gpu_indices"] = terms.gpu_indices
        if (millis := share_of(draft.state.floors[job.id], terms)) != share_millis(draft.state.floors[job.id], member):
            about["gpu_millis"] = millis
    draft.add(e.QuotaChanged, job, *why, attempt=job.attempt, rank=member.rank, quotas=quotas, **about)


def _raised(draft: Draft, job: Job, member: Member, quotas: tuple[e.Quota, ...]) -> tuple[e.Reason, ...]:
    """Say that a member has more CPU because its share is raised."""
    spec, steps = draft.state.specs[job.id], raising.steps_at(job, draft.now_ns)
    before_millis, millis = sharing.quota_millis(spec, member.quotas), sharing.quota_millis(spec, quotas)
    if not steps or millis <= before_millis:
        return ()
    numbers = {"steps": steps, "steps_max": raising.STEPS_MAX, "cpu_millis": millis, "before": before_millis}
    return (e.Reason(code="ShareRaised", detail="its step rate is below its target, or was", numbers=numbers),)


def _add_placement(draft: Draft, trial: Trial, placement: tuple[Job, tuple[Seat, ...]], shares: _Shares) -> None:
    (job, seats), names, nodes = placement, trial.index.table.names, draft.state.nodes
    members = []
    for rank, seat in enumerate(seats):
        name = names[seat.row]
        members.append(
            e.MemberPlacement(
                rank=rank,
                node=name,
                incarnation=nodes[name].incarnation,
                quotas=shares[job.id, rank],
                gpu_indices=seat.gpu_indices,
            )
        )
    on = ", ".join(sorted({each.node for each in members})) if len(members) > 1 else members[0].node
    draft.add(
        e.JobPlaced,
        job,
        e.Reason(code="Fits", detail=f"first in line on {on}"),
        attempt=job.attempt + 1,
        members=tuple(members),
        resume=job.newest_checkpoint,
        backfills=trial.backfills.get(job.id, ()),
    )
