"""Where the members of a job go, all of them or none, and the decisions that say so."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidegate_events import events as e
from tidegate_events.resources import Resources

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.simulator.baselines.cluster import Seat
from tidegate_scheduler.simulator.baselines.domains import Wanted, groups
from tidegate_scheduler.simulator.baselines.room import Room
from tidegate_scheduler.simulator.held_for_life import quotas
from tidegate_scheduler.state import Job

Tightness = Callable[[Room, Resources], tuple[int, ...]]
"""How well a member lies on a node that holds it, smaller is better; of equals the first by name is taken."""


def tightest(room: Room, need: Resources) -> tuple[int, ...]:
    """Prefer the node with the least left: devices, then CPU."""
    return (room.gpu_millis, room.cpu_millis - need.cpu_millis)


class Rooms:
    """Rooms in which seats are tried; `undo` takes all of them back."""

    def __init__(self, rooms: dict[str, Room], names: list[str]) -> None:
        self.rooms = rooms
        self.names = names
        self._taken: list[tuple[Room, Resources, tuple[int, ...]]] = []

    @property
    def mark(self) -> int:
        """Return the point that `undo` goes back to."""
        return len(self._taken)

    def undo(self, mark: int = 0) -> None:
        """Take back what was tried since the mark."""
        while len(self._taken) > mark:
            room, need, indices = self._taken.pop()
            room.occupy(need, indices, -1)

    def occupy(self, need: Resources, seat: Seat) -> None:
        """Let a member have a seat."""
        room = self.rooms[seat.node]
        room.occupy(need, seat.gpu_indices)
        self._taken.append((room, need, seat.gpu_indices))

    def vacate(self, need: Resources, seat: Seat) -> None:
        """Let a member give back its seat; one on a node that is closed frees nothing."""
        room = self.rooms.get(seat.node)
        if room is not None:
            less = Resources(-need.cpu_millis, -need.memory_mib)
            self.occupy_devices(room, less, seat.gpu_indices, -(need.gpu_millis or 1000))

    def occupy_devices(self, room: Room, need: Resources, indices: tuple[int, ...], millis: int) -> None:
        """Take so much of each device."""
        each = Resources(need.cpu_millis, need.memory_mib, gpu_millis=millis)
        room.occupy(each, indices)
        self._taken.append((room, each, indices))

    def seat(self, wanted: Wanted, tightness: Tightness = tightest) -> tuple[Seat, ...] | None:
        """Return seats for all members, which have them then; None where they do not fit, and nothing is taken."""
        for names in groups(wanted, self.rooms, self.names):
            seats = self._seat_in(names, wanted, tightness)
            if seats is not None:
                return seats
        return None

    def _seat_in(self, names: list[str], wanted: Wanted, tightness: Tightness) -> tuple[Seat, ...] | None:
        mark, seats = self.mark, list[Seat]()
        for _ in range(wanted.spec.gang_size):
            seat = self.seat_one(wanted, names, tightness)
            if seat is None:
                self.undo(mark)
                return None
            seats.append(seat)
        return tuple(seats)

    def seat_one(self, wanted: Wanted, names: list[str], tightness: Tightness = tightest) -> Seat | None:
        """Return the best seat on these nodes for one more member, which has it then; None where there is none."""
        best: tuple[tuple[int, ...], str] | None = None
        spec, need = wanted.spec, wanted.need
        rooms, gpus, cpu_millis = self.rooms, need.gpus, need.cpu_millis
        for name in names:
            room = rooms[name]
            if room.whole < gpus or room.cpu_millis < cpu_millis:
                continue  # most are full: that is seen at a glance
            if room.fits(need, spec.gpu_models) and wanted.offered_by(room):
                score = (tightness(room, need), name)
                if best is None or score < best:
                    best = score
        if best is None:
            return None
        seat = Seat(best[1], self.rooms[best[1]].take(need, spec.gpu_models))
        self.occupy(need, seat)
        return seat


def place(draft: Draft, job: Job, seats: Iterable[Seat]) -> None:
    """Decide that the job runs there; every member has the most that it needs at least in any phase, for good."""
    has = quotas(draft.state.specs[job.id])
    members = tuple(
        e.MemberPlacement(
            rank=rank,
            node=seat.node,
            incarnation=draft.state.nodes[seat.node].incarnation,
            quotas=has,
            gpu_indices=seat.gpu_indices,
        )
        for rank, seat in enumerate(seats)
    )
    reason = e.Reason(code="Fits")
    draft.add(e.JobPlaced, job, reason, attempt=job.attempt + 1, members=members, resume=job.newest_checkpoint)
