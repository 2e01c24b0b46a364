"""What borrowers will ask for on each row beyond what they hold, so that they are placed by it.

A job that borrows holds its default phase, which is little. Placed by that alone, borrowers would gather on the
tightest node and wait there for each other, while others stand idle. So what their phases need at most is counted here:
it keeps nobody out, but where all of it fits a borrower goes before anywhere else, and then where there is most of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidegate_events.resources import Resources
from tidegate_events.spec import DEFAULT_PHASE, JobSpec, phase_need

if TYPE_CHECKING:
    from tidegate_scheduler.policy.elastic.entries import Seat

Peak = tuple[int, int, int]
"""CPU in thousandths, MiB of memory, whole devices."""

NONE: Peak = (0, 0, 0)
LOAD_BITS = 16
"""How finely loads are told apart: in parts of 2**16 of what the node has."""


SPECS_KNOWN_MAX = 1 << 16
_known: dict[int, tuple[JobSpec, Peak]] = {}
"""By specification, which is one object while its job lives: a job is entered again whenever it changes."""


def phases_of(spec: JobSpec) -> tuple[Resources, ...]:
    """Return what one member of a borrower needs in the phases other than the default; of other jobs nothing."""
    if not spec.borrows:
        return ()
    return tuple(dict.fromkeys(phase_need(spec, phase) for phase in spec.phases if phase != DEFAULT_PHASE))


def peak_of(needs: tuple[Resources, ...]) -> Peak:
    """Return the most of each amount that any of them needs."""
    return (
        max((need.cpu_millis for need in needs), default=0),
        max((need.memory_mib for need in needs), default=0),
        max((need.gpus for need in needs), default=0),
    )


class Peaks:
    """By row what its borrowers may ask for yet, and what those will whom a pass has placed until it ends."""

    def __init__(self) -> None:
        self._on: dict[int, Peak] = {}
        self._tried: list[tuple[int, Peak]] = []

    def on(self, row: int) -> Peak:
        """Return what may be asked for on the row."""
        return self._on.get(row, NONE)

    def add(self, row: int, more: Peak, sign: int = 1) -> None:
        """Count that so much more may be asked for on a row, or with `sign` -1 so much less."""
        cpu_millis, memory_mib, gpus = self.on(row)
        found = (cpu_millis + sign * more[0], memory_mib + sign * more[1], gpus + sign * more[2])
        if found == NONE:
            self._on.pop(row, None)
        else:
            self._on[row] = found

    def expect(self, spec: JobSpec, floor: Resources, seats: tuple[Seat, ...]) -> None:
        """Count what a job may ask for that a pass places."""
        for seat in seats if spec.borrows else ():
            self._tried.append((seat.row, beyond(spec, floor, seat.extra)))
            self.add(*self._tried[-1])

    def end_pass(self) -> None:
        """Take back what was expected: it is there when the placements are folded."""
        for row, more in self._tried:
            self.add(row, more, -1)
        self._tried.clear()


def beyond(spec: JobSpec, floor: Resources, extra: Resources | None) -> Peak:
    """Return what a member of a borrower may ask for yet, beyond its floor and what it has of that already."""
    known = _known.get(id(spec))
    if known is None or known[0] is not spec:
        if len(_known) >= SPECS_KNOWN_MAX:
            _known.clear()
        known = _known[id(spec)] = (spec, peak_of(phases_of(spec)))
    cpu_millis, memory_mib, gpus = known[1]
    has = floor if extra is None else floor.plus(extra)
    return max(0, cpu_millis - has.cpu_millis), max(0, memory_mib - has.memory_mib), max(0, gpus - has.gpus)


def tightness(room: list[int], peak: Peak, whole: Peak, gpu_bits: int, cpu_bits: int) -> int:
    """Return how a row suits who may need `peak`, smaller is better, in one bit more than devices and CPU take.

    `room` is what is left there when all ask for all. Where the peak fits, the tightest row is best, as for every job;
    else the row of which least would be asked for, of whatever is asked for most, in parts of what it has.
    """
    left = [have - need for have, need in zip(room, peak, strict=True)]
    if min(left) >= 0:
        return (min(left[2], (1 << gpu_bits) - 1) << cpu_bits) | min(left[0], (1 << cpu_bits) - 1)
    return (1 << (gpu_bits + cpu_bits)) | min(load(left, whole), (1 << (gpu_bits + cpu_bits)) - 1)


def load(left: Sequence[int], whole: Peak) -> int:
    """Return the part of a row that is asked for, of whatever is asked for most, in 2**16 parts of what it has."""
    return max(((has - each) << LOAD_BITS) // has for has, each in zip(whole, left, strict=True) if has)
