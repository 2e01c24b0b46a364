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
    held = [(seat, index.state.floors[job.id]) for job in gone for seat in index.seats_of(job.id)]
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
    held = [(index.state.floors[job.id], seat) for job in gone for seat in index.seats_of(job.id) if seat.row == row]
    if need.gpu_millis or row in index.table.mixed or any(floor.gpu_millis for floor, _ in held):
        with without(index, gone) as room:
            return int(fit.members(room, np.array([row], np.int64))[0])
    later, members = index.table.later_on(row), fit.shape.gang_size
    for have, freed, each in (
        (later[CPU], sum(floor.cpu_millis for floor, _ in held), need.cpu_millis),
        (later[MEMORY], sum(floor.memory_mib for floor, _ in held), need.memory_mib),
        (later[GPUS], sum(floor.gpus for floor, _ in held), need.gpus),
    ):
        if each:
            members = min(members, max(0, have + freed) // each)
    return members
