"""Who waits on a row for what is leased there: owners for their own, as they asked, then who comes."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from tidegate_events.resources import Resources

from tidegate_scheduler.policy.elastic import replicas
from tidegate_scheduler.policy.elastic.asking import may_stay
from tidegate_scheduler.policy.elastic.coming import coming_on
from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.parts import device_of
from tidegate_scheduler.policy.elastic.physical import asking_on, balance_mib, has_mib, need_of
from tidegate_scheduler.policy.elastic.short import NOTHING, Short, short_of, slots
from tidegate_scheduler.policy.elastic.table import CPU, MEMORY
from tidegate_scheduler.policy.elastic.terms import devices_of, missing_share, wanted_need, wish
from tidegate_scheduler.policy.elastic.trial import Trial
from tidegate_scheduler.state import Job, Member


class Claim(msgspec.Struct, frozen=True):
    """What a member waits for that is its own: so much memory, and so many devices, or such a share, that it lent."""

    job: Job
    member: Member
    phase: str
    more_mib: int
    missing: int
    missing_millis: int

    @property
    def turn(self) -> tuple[int, int, str, int]:
        """Return the order of claims: by when the phase was asked for; who is in it without a word is first."""
        return self.member.wanted_ns, self.job.submitted_seq, self.job.id, self.member.rank


def claim_of(index: Index, job: Job, member: Member) -> Claim | None:
    """Return what a member waits for within its floor, None where it waits for nothing or for more than that."""
    spec, floor = index.state.specs[job.id], index.state.floors[job.id]
    phase = wish(spec, floor, member)
    if not phase or (need := need_of(spec, phase)).beyond(floor) != Resources():
        return None
    more_mib = max(0, wanted_need(spec, floor, member, phase).memory_mib - has_mib(spec, member))
    missing = max(0, need.gpus - len(devices_of(member).floor))
    return Claim(job, member, phase, more_mib, missing, missing_share(spec, floor, member))


def claims_on(index: Index, row: int) -> list[Claim]:
    """Return the claims of those on a row who stay, in their order."""
    found = [claim_of(index, job, member) for job, member in asking_on(index, row) if may_stay(job)]
    return sorted((claim for claim in found if claim is not None), key=lambda claim: claim.turn)


def spare_mib(index: Index, row: int, simulators_mib: int) -> int:
    """Return the memory of a row that nobody has."""
    return int(index.table.free_on(row)[MEMORY]) - simulators_mib + balance_mib(index, row)


def lacks_memory(index: Index, row: int, need_mib: int, simulators_mib: int) -> bool:
    """Say whether so much is not there for whoever comes, beside what owners on the row wait for already."""
    claimed_mib = sum(claim.more_mib for claim in claims_on(index, row))
    return need_mib > 0 and need_mib + claimed_mib > spare_mib(index, row, simulators_mib)


def lacks_devices(index: Index, row: int, job: Job, count: int, coming: dict[int, int] | None = None) -> Short:
    """Return what `count` members of the job need of devices that is free there, and leased to others still.

    `coming` is what others will have of each who wait on the row before it.
    """
    devices = index.table.devices[row]
    if not devices.leased:
        return NOTHING
    if coming:
        used = devices.used_millis | {each: WHOLE_MILLIS - devices.free_of(each) + coming[each] for each in coming}
        free = [gpu for gpu in devices.free if gpu.index not in coming]
        devices = msgspec.structs.replace(devices, used_millis=used, free=free)
    return short_of(devices, index.state.floors[job.id], index.state.specs[job.id].gpu_models, count)


def waiting_for_leases(trial: Trial, row: int, now_ns: int) -> Iterator[str]:
    """Yield for whom leases on the row must come back, as it stands: jobs, or none by name for a node that shrank."""
    index = trial.index
    simulators_mib, _ = replicas.held(index, row, now_ns)
    there_mib, claimed_mib = spare_mib(index, row, simulators_mib), 0
    devices, claimed = index.table.devices[row], dict[int, int]()
    for claim in claims_on(index, row):
        claimed_mib += claim.more_mib
        back = sum(each not in devices.leased for each in claim.member.lent_gpus)
        short = (claim.more_mib and claimed_mib > max(0, there_mib)) or back < claim.missing
        for device in device_of(claim.member) if claim.missing_millis else ():
            claimed[device] = claimed.get(device, 0) + claim.missing_millis
            short = short or claimed[device] > devices.spare_of(device)
        if short:
            yield claim.job.id
    for name in sorted(trial.promises):
        job, count = index.state.jobs[name], trial.promises[name].count(row)
        if not count or not job.waiting or job.held or job.cancel_requested:
            continue
        need_mib = index.state.floors[name].memory_mib * count
        if _free(index, row, job, count):
            if lacks_memory(index, row, need_mib, simulators_mib) or lacks_devices(index, row, job, count).count:
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
    return _enough(index, row, (job, count), Resources(), {})


def _free_once_left(trial: Trial, row: int, job: Job, count: int) -> bool:
    """Say whether there is when those have left who are leaving, and what is asked back for the job is back."""
    index, back = trial.index, list[tuple[Resources, tuple[int, ...]]]()
    for _, member in asking_on(index, row):
        if member.hand_back_for == job.id and member.extra is not None:
            back.append((member.extra, device_of(member)))
    for name in index.on_row.get(row, ()):
        if index.leaving(name) or name in trial.asked:
            seats = [seat for seat in index.seats_of(name) if seat.row == row]
            back += [(seat.holds(index.state.floors[name]), seat.gpu_indices) for seat in seats]
    whole, parts = Resources(), dict[int, int]()
    for amount, devices in back:
        whole = whole.plus(amount)
        for device in devices:
            parts[device] = parts.get(device, 0) + (WHOLE_MILLIS if amount.gpus else amount.gpu_millis)
    return _enough(index, row, (job, count), whole, parts)


def _enough(index: Index, row: int, comes: tuple[Job, int], back: Resources, parts: dict[int, int]) -> bool:
    """Say whether there is room by floors for so many members of the job, with what comes back."""
    (job, count), free = comes, index.table.free_on(row)
    need, models = index.state.floors[job.id], index.state.specs[job.id].gpu_models
    return bool(
        free[CPU] + back.cpu_millis >= need.cpu_millis * count
        and free[MEMORY] + back.memory_mib >= need.memory_mib * count
        and (not (need.gpus or need.gpu_millis) or slots(index.table.devices[row], need, models, parts) >= count)
    )
