"""Who waits on a row for what is leased there: owners for their own, as they asked, then who comes."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from tidegate_events.resources import Resources

from tidegate_scheduler.policy.elastic import replicas
from tidegate_scheduler.policy.elastic.coming import coming_on
from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS, accepts
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.physical import asking_on, balance_mib, has_mib, need_of
from tidegate_scheduler.policy.elastic.table import CPU, GPUS, MEMORY
from tidegate_scheduler.policy.elastic.terms import devices_of, wanted_need, wish
from tidegate_scheduler.policy.elastic.trial import Trial
from tidegate_scheduler.state import LEAVING_STAGES, Job, Member


class Claim(msgspec.Struct, frozen=True):
    """What a member waits for that is its own: so much memory, and so many devices of those that it lent."""

    job: Job
    member: Member
    phase: str
    more_mib: int
    missing: int

    @property
    def turn(self) -> tuple[int, int, str, int]:
        """Return the order of claims: by when the phase was asked for; who is in it without a word is first."""
        return self.member.wanted_ns, self.job.submitted_seq, self.job.id, self.member.rank


def claim_of(index: Index, job: Job, member: Member) -> Claim | None:
    """Return what a member waits for within its floor, None where it waits for nothing or for more than that."""
    spec, floor = index.state.specs[job.id], index.state.floors[job.id]
    phase = wish(spec, member)
    if not phase or need_of(spec, phase).beyond(floor) != Resources():
        return None
    more_mib = max(0, wanted_need(spec, member, phase).memory_mib - has_mib(spec, member))
    missing = max(0, need_of(spec, phase).gpus - len(devices_of(member).floor))
    return Claim(job, member, phase, more_mib, missing)


def claims_on(index: Index, row: int) -> list[Claim]:
    """Return the claims of those on a row who stay, in their order."""
    found = [
        claim_of(index, job, member)
        for job, member in asking_on(index, row)
        if job.stage not in LEAVING_STAGES and not (job.cancel_requested or job.suspend_requested)
    ]
    return sorted((claim for claim in found if claim is not None), key=lambda claim: claim.turn)


def spare_mib(index: Index, row: int, simulators_mib: int) -> int:
    """Return the memory of a row that nobody has."""
    return int(index.table.free_on(row)[MEMORY]) - simulators_mib + balance_mib(index, row)


def lacks_memory(index: Index, row: int, need_mib: int, simulators_mib: int) -> bool:
    """Say whether so much is not there for whoever comes, beside what owners on the row wait for already."""
    claimed_mib = sum(claim.more_mib for claim in claims_on(index, row))
    return need_mib > 0 and need_mib + claimed_mib > spare_mib(index, row, simulators_mib)


def lacks_devices(index: Index, row: int, job: Job, count: int) -> int:
    """Return how many devices `count` members of the job need that are free there, and leased to others still."""
    need, models = index.state.floors[job.id], index.state.specs[job.id].gpu_models
    devices = index.table.devices[row]
    if not devices.leased or not (need.gpus or need.gpu_millis):
        return 0
    whole = len(devices.at_hand(need, models))
    if need.gpus:
        return max(0, need.gpus * count - whole)
    parts = sum(
        (WHOLE_MILLIS - used) // need.gpu_millis
        for each, used in devices.used_millis.items()
        if each in devices.all and accepts(devices.all[each], need, models)
    )
    return max(0, -(-(count - parts) // (WHOLE_MILLIS // need.gpu_millis)) - whole)


def waiting_for_leases(trial: Trial, row: int, now_ns: int) -> Iterator[str]:
    """Yield for whom leases on the row must come back, as it stands: jobs, or none by name for a node that shrank."""
    index = trial.index
    simulators_mib, _ = replicas.held(index, row, now_ns)
    there_mib, claimed_mib = spare_mib(index, row, simulators_mib), 0
    leased = index.table.devices[row].leased
    for claim in claims_on(index, row):
        claimed_mib += claim.more_mib
        back = sum(each not in leased for each in claim.member.lent_gpus)
        if (claim.more_mib and claimed_mib > max(0, there_mib)) or back < claim.missing:
            yield claim.job.id
    for name in sorted(trial.promises):
        job, count = index.state.jobs[name], trial.promises[name].count(row)
        if not count or not job.waiting or job.held or job.cancel_requested:
            continue
        need_mib = index.state.floors[name].memory_mib * count
        if _free(index, row, job, count):
            if lacks_memory(index, row, need_mib, simulators_mib) or lacks_devices(index, row, job, count):
                yield name
        elif _told(index, row, job) and _free_once_left(trial, row, job, count):
            yield name
    yield from (each.job for each in coming_on(trial, row) if each.lacks and now_ns >= each.due_ns)
    if there_mib < 0:
        yield ""


def _told(index: Index, row: int, job: Job) -> bool:
    """Say whether somebody on the row was told to hand back for the job."""
    return any(member.hand_back_for == job.id for _, member in asking_on(index, row))


def _free(index: Index, row: int, job: Job, count: int) -> bool:
    """Say whether there is room by floors for the job."""
    return _enough(index, row, job, count, Resources())


def _free_once_left(trial: Trial, row: int, job: Job, count: int) -> bool:
    """Say whether there is when those have left who are leaving, and what is asked back for the job is back."""
    index, back = trial.index, Resources()
    for _, member in asking_on(index, row):
        if member.hand_back_for == job.id and member.extra is not None:
            back = back.plus(member.extra)
    for name in index.on_row.get(row, ()):
        if index.leaving(name) or name in trial.asked:
            for seat in index.seats_of(name):
                back = back.plus(seat.holds(index.state.floors[name])) if seat.row == row else back
    return _enough(index, row, job, count, back)


def _enough(index: Index, row: int, job: Job, count: int, back: Resources) -> bool:
    free, need = index.table.free_on(row), index.state.floors[job.id]
    return bool(
        free[CPU] + back.cpu_millis >= need.cpu_millis * count
        and free[MEMORY] + back.memory_mib >= need.memory_mib * count
        and free[GPUS] + back.gpus >= need.gpus * count
    )
