"""What one job has entered into the tables, and where its members sit."""

from __future__ import annotations

import msgspec
from tidegate_events.resources import Resources

from tidegate_scheduler.policy.elastic.queue import Amounts, amounts, plus
from tidegate_scheduler.policy.elastic.table import Kept
from tidegate_scheduler.state import Member


class Seat(msgspec.Struct, frozen=True, gc=False):
    """A member's place: the row of its node and the devices that it holds there, whether it lends them or not.

    `extra` is what it holds beyond its floor.
    """

    row: int
    gpu_indices: tuple[int, ...]
    extra: Resources | None = None

    def holds(self, floor: Resources) -> Resources:
        """Return all that the member holds."""
        return floor if self.extra is None else floor.plus(self.extra)


def seat_of(row: int, member: Member) -> Seat:
    """Return the place of a member; devices that are leased to it are held by their owners."""
    if member.leased is None and member.extra is None and not member.lent_gpus:
        return Seat(row, member.gpu_indices)
    return Seat(row, parted(member)[0] + member.lent_gpus, member.extra)


def parted(member: Member) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the devices that a member has for itself, and those that are leased to it."""
    own = len(member.gpu_indices) - (member.leased.gpus if member.leased is not None else 0)
    return member.gpu_indices[:own], member.gpu_indices[own:]


def held_by(floor: Resources, seats: tuple[Seat, ...]) -> Amounts:
    """Return what the members of a job hold on their seats, as fair share counts it."""
    whole = amounts(floor, len(seats))
    for seat in seats:
        if seat.extra is not None:
            whole = plus(whole, amounts(seat.extra))
    return whole


class Entry(msgspec.Struct, gc=False):
    """What one job has entered into the tables, to be taken out again when that changes.

    `promised` are the rows of the room that is kept for it, which it `reserves` though there be none of them; `scaled`
    those on which it has more simulators than it is guaranteed, or had. `kept` is what is
    promised to each member there.
    """

    tenant: str
    priority: int
    need: Resources
    elastic: bool
    seats: tuple[Seat, ...] = ()
    leaving: bool = False
    scaled: tuple[int, ...] = ()
    backfills: bool = False
    promised: tuple[int, ...] = ()
    reserves: bool = False
    kept: Kept | None = None
