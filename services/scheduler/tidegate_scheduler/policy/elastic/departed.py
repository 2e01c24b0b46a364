"""The room that there will be once certain jobs have left too, for those who plan to ask them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.shapes import Fit
from tidegate_scheduler.policy.elastic.table import CPU, GPUS, MEMORY, Ints
from tidegate_scheduler.state import Job


@contextmanager
def without(index: Index, gone: list[Job]) -> Iterator[Ints]:
    """Let the table's `later`, which is given, be what there will be once these have left too."""
    held = [(seat, seat.holds(index.state.floors[job.id])) for job in gone for seat in index.seats_of(job.id)]
    for seat, need in held:
        index.table.leave(seat.row, need, seat.gpu_indices)
    try:
        yield index.table.later
    finally:
        for seat, need in held:
            index.table.stay(seat.row, need, seat.gpu_indices)


def members_without(index: Index, fit: Fit, row: int, gone: list[Job]) -> int:
    """Return how many members the row holds once these have left too."""
    need = fit.shape.need
    held = [
        seat.holds(index.state.floors[job.id]) for job in gone for seat in index.seats_of(job.id) if seat.row == row
    ]
    if need.gpu_millis or row in index.table.mixed or any(each.gpu_millis for each in held):
        with without(index, gone) as room:
            return int(fit.members(room, np.array([row], np.int64))[0])
    later, members = index.table.later_on(row), fit.shape.gang_size
    for have, freed, one in (
        (later[CPU], sum(each.cpu_millis for each in held), need.cpu_millis),
        (later[MEMORY], sum(each.memory_mib for each in held), need.memory_mib),
        (later[GPUS], sum(each.gpus for each in held), need.gpus),
    ):
        if one:
            members = min(members, max(0, have + freed) // one)
    return members
