"""Who hands back what is leased: the fewest, of them who had it granted last; who does not in time is asked to leave.

What is recalled is told the member with a deadline. Until then it leaves its phase, and has no more than its own as
soon as the kernel says so; else it saves and leaves altogether.
"""

from __future__ import annotations

from collections import Counter

from tidegate_events import events as e
from tidegate_events.resources import Resources

from tidegate_scheduler.counting import SIMULATORS_LEAVE_NS
from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.elastic import leave, replicas
from tidegate_scheduler.policy.elastic.claims import lacks_devices, lacks_memory, waiting_for_leases
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.parts import Part
from tidegate_scheduler.policy.elastic.physical import asking_on, surplus
from tidegate_scheduler.policy.elastic.trial import Trial
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.recall_changes import stands_until_ns
from tidegate_scheduler.state import LEAVING_STAGES, Job, Member


def overdue(draft: Draft, trial: Trial) -> None:
    """Ask those to leave who did not hand back in time; who need not, since nobody waits any more, is told that."""
    jobs = [draft.state.jobs[name] for name in trial.index.asking.recalled]
    lost = {event.node for event in draft.events if isinstance(event, e.NodeLost)}
    for job in sorted(jobs, key=lambda job: (job.submitted_seq, job.id)):
        if draft.full:
            return
        if job.stage not in ("placed", "running") or job.id in draft.leaving:
            continue
        if any(each.node in lost for each in job.members):  # its attempt ends by what was just decided
            continue
        told = sorted((each for each in job.members if each.active and each.hand_back_ns), key=_deadline)
        waiting = _waiting(draft, trial, told)
        if not waiting:
            _withdraw(draft, job, told)
        elif draft.now_ns < told[0].hand_back_ns:
            draft.wake_by(told[0].hand_back_ns)
        else:
            _evict(draft, trial, job, waiting)


def _waiting(draft: Draft, trial: Trial, told: list[Member]) -> list[str]:
    """Return for whom the members must hand back still, first those for whom they were told."""
    rows = dict.fromkeys(trial.index.table.rows[each.node] for each in told)
    found = [name for row in rows for name in waiting_for_leases(trial, row, draft.now_ns)]
    named = {each.hand_back_for for each in told}
    return sorted(found, key=lambda name: name not in named)


def _evict(draft: Draft, trial: Trial, job: Job, waiting: list[str]) -> None:
    for_job = next((name for name in waiting if name), "")
    late = min((each for each in job.members if each.active and each.hand_back_ns), key=_deadline)
    numbers = {"rank": late.rank, "hand_back_seconds": draft.state.specs[job.id].preemption.hand_back_seconds}
    detail = f"{for_job or late.node} needs what is leased to it"
    reason = e.Reason(code="LeaseNotReturned", detail=detail, numbers=numbers)
    leave.ask(draft, trial, job, reason, for_job=for_job)


def _withdraw(draft: Draft, job: Job, told: list[Member]) -> None:
    """Tell the members that they may keep what was recalled, unless they were told so too often just now."""
    stands_ns = [until_ns for each in told if (until_ns := stands_until_ns(each, draft.now_ns)) is not None]
    if stands_ns:
        draft.wake_by(max(stands_ns))
        return
    for member in told:
        detail = f"{member.hand_back_for or member.node} needs it no longer"
        draft.add(
            e.HandBackRequested,
            job,
            e.Reason(code="LeaseRecalled", detail=detail),
            attempt=job.attempt,
            rank=member.rank,
            deadline_ns=0,
            for_job="",
        )


def _deadline(member: Member) -> tuple[int, int]:
    return member.hand_back_ns, member.rank


# ---- room that is free by floors, and is still leased ----


def awaited(trial: Trial, job: Job, rows: tuple[int, ...], now_ns: int) -> dict[int, int]:
    """Return the rows of a placement on which others still have its memory or devices, and when they are back."""
    index = trial.index
    found: dict[int, int] = {}
    if not (index.scaled or index.asking.on_row):
        return found
    for row in sorted({row for row in rows if row in index.scaled or row in index.asking.on_row}):
        count = rows.count(row)
        more_mib, back_ns = replicas.held(index, row, now_ns)
        need = index.state.floors[job.id]
        lacks = lacks_memory(index, row, need.memory_mib * count, more_mib)
        if lacks or lacks_devices(index, row, job, count).count:
            leased_ns = [_back_ns(index, other, member, now_ns) for other, member in asking_on(index, row)]
            found[row] = max([back_ns, *leased_ns] if more_mib else leased_ns, default=0) or back_ns
    return found


def recalled_for(index: Index, job: Job) -> tuple[int, ...]:
    """Return the rows of the room that is kept for a job, if others there were told to hand back for it; else none."""
    rows = tuple(index.table.rows[name] for name in job.reserved_nodes if name in index.table.rows)
    told = any(each.hand_back_for == job.id for row in set(rows) for _, each in asking_on(index, row))
    return rows if told else ()


def _back_ns(index: Index, job: Job, member: Member, now_ns: int) -> int:
    """Return when the member has given back what is not its own, at the latest, if it is told now; 0: it has nothing.

    Where that is over, it is looked at again in a while: what it waits for then is a fact.
    """
    if not any(surplus(index, job, member)):
        return 0
    if job.stage in LEAVING_STAGES:
        return job.deadline_ns if job.deadline_ns > now_ns else now_ns + SIMULATORS_LEAVE_NS
    rule = index.state.specs[job.id].preemption
    hand_back_ns = member.hand_back_ns or now_ns + rule.hand_back_seconds * SECOND_NS
    return max(now_ns, hand_back_ns) + rule.grace_seconds * SECOND_NS


# ---- recalling ----

_Rank = tuple[int, int, int, int, int, int, str, int]


class Wanted:
    """What is recalled on a row: so much memory, and of devices such parts, of so many of them."""

    def __init__(self, short_mib: int, parts: dict[int, int] | None = None, count: int = 0) -> None:
        self.short_mib = short_mib
        self.parts = dict(parts or {})
        self.count = count

    @property
    def more(self) -> bool:
        """Say whether anything is still wanted."""
        return self.short_mib > 0 or self.count > 0

    def covers(self, more_mib: int, parts: tuple[Part, ...]) -> tuple[int, int, int]:
        """Return of how many devices that is all that is wanted, how much of the memory, and what of other devices."""
        if self.count <= 0:
            return 0, max(0, min(self.short_mib, more_mib)), 0
        mine = [(self.parts[each], millis) for each, millis in parts if each in self.parts]
        whole = sum(millis >= short for short, millis in mine)
        return min(self.count, whole), max(0, min(self.short_mib, more_mib)), 0 if whole else sum(m for _, m in mine)

    def take(self, more_mib: int, parts: tuple[Part, ...]) -> None:
        """Count what will be back."""
        self.short_mib -= more_mib
        for each, millis in parts:
            if each in self.parts:
                self.parts[each] -= millis
                if self.parts[each] <= 0:
                    del self.parts[each]
                    self.count -= 1


def tell(draft: Draft, trial: Trial, job: Job, for_job: str, *, beyond: bool = False) -> None:
    """Tell all members of the job that have something leased, or `beyond` their floors: they entered together."""
    trial.recalled.add(job.id)
    seconds = draft.state.specs[job.id].preemption.hand_back_seconds
    for member in job.members:
        if not member.active or member.hand_back_ns:
            continue
        more_mib, _ = surplus(trial.index, job, member)
        if not (more_mib or member.leased or (beyond and member.extra)):
            continue
        leased, extra = member.leased or Resources(), (member.extra if beyond else None) or Resources()
        numbers = {
            "memory_mib": max(more_mib, leased.memory_mib) + extra.memory_mib,
            "gpus": leased.gpus + extra.gpus,
        }
        if share_millis := leased.gpu_millis + extra.gpu_millis:
            numbers["gpu_millis"] = share_millis
        draft.add(
            e.HandBackRequested,
            job,
            e.Reason(code="LeaseRecalled", detail=f"{for_job or member.node} needs it", numbers=numbers),
            attempt=job.attempt,
            rank=member.rank,
            deadline_ns=draft.now_ns + seconds * SECOND_NS,
            for_job=for_job,
        )


class Recalls:
    """Recalls of one pass; whoever was told before, or leaves, gives back what it has and counts first."""

    def __init__(self, draft: Draft, trial: Trial) -> None:
        self._draft = draft
        self._index = trial.index
        self._trial = trial

    def recall(self, row: int, for_job: str, wanted: Wanted) -> None:
        """Tell the fewest on the row to hand back what is wanted."""
        index, candidates = self._index, list[tuple[Job, Member]]()
        for job, member in asking_on(index, row):
            if self._gives_back(job, member):
                wanted.take(*surplus(index, job, member))
            elif any(surplus(index, job, member)):
                candidates.append((job, member))
        while wanted.more and candidates and not self._draft.full:
            crowd = Counter(part for each in candidates for part, _ in surplus(index, *each)[1])
            best = min(candidates, key=lambda each: self._rank(each, wanted, crowd))
            if not any(wanted.covers(*surplus(index, *best))):
                return
            tell(self._draft, self._trial, best[0], for_job)
            for each in [each for each in candidates if each[0] is best[0]]:
                wanted.take(*surplus(index, *each))
                candidates.remove(each)

    def _gives_back(self, job: Job, member: Member) -> bool:
        leaving = job.stage in LEAVING_STAGES or job.id in self._draft.leaving
        return leaving or job.id in self._trial.recalled or bool(member.hand_back_ns)

    def _rank(self, each: tuple[Job, Member], wanted: Wanted, crowd: Counter[int]) -> _Rank:
        """Return who is told first: who has most of what is wanted, and of a device that several have, the fewest."""
        job, member = each
        more_mib, parts = surplus(self._index, job, member)
        whole, covered_mib, millis = wanted.covers(more_mib, parts)
        others = min((crowd[device] for device, _ in parts if device in wanted.parts), default=0) if millis else 0
        return -whole, -covered_mib, -bool(millis), others, -millis, -member.leased_ns, job.id, member.rank
