"""Who comes to a row at a time that was told, and what others have leased there that must be back by then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS, Devices
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.parts import Part, leased_to, lent_by
from tidegate_scheduler.policy.elastic.physical import asking_on, has_mib, holds_mib, surplus
from tidegate_scheduler.policy.elastic.short import Short, short_of
from tidegate_scheduler.policy.elastic.table import MEMORY
from tidegate_scheduler.policy.elastic.trial import Trial
from tidegate_scheduler.policy.limits import ends_by_ns
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import Job


class Coming(msgspec.Struct, frozen=True):
    """What is short for a job when it comes, while nobody hands back; `due_ns` is when that must be recalled."""

    job: str
    due_ns: int
    short_mib: int
    short: Short

    @property
    def lacks(self) -> bool:
        """Say whether anything is short."""
        return self.short_mib > 0 or self.short.count > 0


def returns_within_ns(index: Index, job: Job) -> int:
    """Return how long it may take until a job has given back what is leased to it."""
    rule = index.state.specs[job.id].preemption
    return (rule.hand_back_seconds + rule.grace_seconds) * SECOND_NS


def starts_on(trial: Trial, row: int) -> dict[str, int]:
    """Return for whom room is kept on a row, and from when as it was told; 0: that is not known, or told just now."""
    found: dict[str, int] = {}
    for name in sorted(trial.promises):
        if row in trial.promises[name]:
            job = trial.index.state.jobs[name]
            told = trial.index.table.names[row] in job.reserved_nodes
            found[name] = job.reserved_start_ns if told else 0
    return found


def coming_on(trial: Trial, row: int) -> Iterator[Coming]:
    """Yield who comes to a row at a known time, and what is short then; where nothing is leased, nothing is."""
    index = trial.index
    holders = [job for job, member in asking_on(index, row) if any(surplus(index, job, member))]
    if not holders:
        return
    longest_ns = max(returns_within_ns(index, job) for job in holders)
    for name, start_ns in starts_on(trial, row).items():
        if start_ns:
            job, count = index.state.jobs[name], trial.promises[name].count(row)
            yield _short(trial, row, job, (start_ns, start_ns - longest_ns, count))


def _short(trial: Trial, row: int, job: Job, when: tuple[int, int, int]) -> Coming:
    (start_ns, due_ns, count), index = when, trial.index
    gone = {name for name in index.on_row.get(row, ()) if _gone_by(trial, name, start_ns)}
    there_mib, held = int(index.table.free_on(row)[MEMORY]), dict[int, int]()
    for name in index.on_row.get(row, ()):
        for seat in index.seats_of(name):
            if seat.row != row:
                continue
            amount = seat.holds(index.state.floors[name])
            if name in gone:
                there_mib += amount.memory_mib
            else:
                _count(held, ((each, WHOLE_MILLIS if amount.gpus else amount.gpu_millis) for each in seat.gpu_indices))
    leased, lent = dict[int, int](), dict[int, int]()
    for other, member in asking_on(index, row):
        if other.id not in gone:
            floor, spec = index.state.floors[other.id], index.state.specs[other.id]
            there_mib += holds_mib(floor, member) - has_mib(spec, member)
            _count(leased, leased_to(member))
            _count(lent, lent_by(member))
    now = index.table.devices[row]
    free = [gpu for gpu in now.order if not held.get(gpu.index)]
    then = Devices(now.all, free, now.order, used_millis=held, leased=leased, lent=lent)
    need, models = index.state.floors[job.id], index.state.specs[job.id].gpu_models
    return Coming(job.id, due_ns, need.memory_mib * count - there_mib, short_of(then, need, models, count))


def _count(counted: dict[int, int], parts: Iterable[Part]) -> None:
    for device, millis in parts:
        counted[device] = counted.get(device, 0) + millis


def _gone_by(trial: Trial, name: str, start_ns: int) -> bool:
    index = trial.index
    ends_ns = ends_by_ns(index.state.jobs[name], index.state.specs[name])
    return index.leaving(name) or name in trial.asked or (ends_ns is not None and ends_ns <= start_ns)
