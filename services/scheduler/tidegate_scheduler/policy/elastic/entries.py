"""What one job has entered into the tables, and where its members sit."""

from __future__ import annotations

import msgspec
from tidegate_events.resources import Resources

from tidegate_scheduler.policy.elastic.queue import Line, Waiter


class Seat(msgspec.Struct, frozen=True, gc=False):
    """A member's place: the row of its node and the devices it has there."""

    row: int
    gpu_indices: tuple[int, ...]


class Entry(msgspec.Struct):
    """What one job has entered into the tables, to be taken out again when it changes."""

    tenant: str
    priority: int
    need: Resources
    elastic: bool
    seats: tuple[Seat, ...] = ()
    leaving: bool = False
    promised: tuple[int, ...] = ()
    line: Line | None = None
    waiter: Waiter | None = None
