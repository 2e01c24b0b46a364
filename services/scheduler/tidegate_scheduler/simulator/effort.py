"""What a recorded job really did: its work, phase by phase, over all its attempts; what was lost counts once."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from statistics import median_low

import msgspec
from tidegate_events.events import Quota
from tidegate_events.spec import JobSpec

from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.policy.sharing import quota_millis
from tidegate_scheduler.simulator.work import MILLI_NS
from tidegate_scheduler.simulator.workload import Span


class Piece(msgspec.Struct, frozen=True, gc=False):
    """Work in one phase, in nanoseconds of a job that has all the CPU that the phase can use."""

    phase: str
    work_ns: int
    cpu_bound: bool


class Pace(msgspec.Struct, frozen=True):
    """How a job works: in which phase, and how much of its work it does in a time."""

    phase: str
    part: Fraction
    cpu_bound: bool


class Effort:
    """The work of one job. It is `position_ns` far, of which `saved_ns` would be there after its newest checkpoint.

    `whole`: it is seen from its first attempt on.
    """

    def __init__(self, *, whole: bool = True) -> None:
        self.whole = whole
        self.position_ns = 0
        self.saved_ns = 0
        self.own_saves_ns: list[int] = []
        self._pieces: list[Piece] = []
        self._farthest: list[Piece] = []
        self._believed_ns: int | None = None
        """How far it was when somebody of it fell silent, or saved last after that."""
        self._saved: dict[str, int] = {}
        self._pace: Pace | None = None
        self._since_ns = 0

    def lost_in(self) -> list[tuple[str, int]]:
        """Return how much would have to be done again, and of which phase, piece by piece."""
        return _after(self._pieces, self.saved_ns)

    def works(self, pace: Pace | None, now_ns: int) -> None:
        """Count what was done until now, and work on like this; None: it works no more."""
        if self._pace is not None and now_ns > self._since_ns:
            work_ns = int((now_ns - self._since_ns) * self._pace.part)
            self._pieces.append(Piece(self._pace.phase, work_ns, self._pace.cpu_bound))
            self.position_ns += work_ns
        self._pace, self._since_ns = pace, now_ns

    def save(self, checkpoint: str, *, asked: bool) -> None:
        """Keep what is done until now under the name of a checkpoint; `asked`: it was written to leave with."""
        self._saved[checkpoint] = self.saved_ns = self.position_ns
        if self._believed_ns is not None:
            self._believed_ns = self.position_ns
        if not asked:
            self.own_saves_ns.append(self.position_ns)

    def doubt(self, now_ns: int) -> None:
        """Count on, but remember how far it is: somebody of it is not heard any more."""
        if self._believed_ns is None:
            self.works(self._pace, now_ns)
            self._believed_ns = self.position_ns

    def believe(self) -> None:
        """Take it that all was done that was counted: who was not heard is there again, with what it did."""
        self._believed_ns = None

    def died(self) -> list[tuple[str, int]]:
        """Count nothing of what it was taken to have done since somebody of it fell silent; return what that is."""
        if self._believed_ns is None:
            return []
        undone = _after(self._pieces, self._believed_ns)
        self._pieces = _cut(self._pieces, self._believed_ns)
        self.position_ns, self._believed_ns = self._believed_ns, None
        return undone

    def go_back(self, checkpoint: str) -> None:
        """Begin an attempt from a checkpoint (empty: from nothing); one that is not known is where recording began."""
        if self.position_ns > sum(piece.work_ns for piece in self._farthest):
            self._farthest = self._pieces
        target_ns = min(self._saved.get(checkpoint, 0), self.position_ns)
        self._pieces = _cut(self._pieces, target_ns)
        self.position_ns = self.saved_ns = target_ns
        self._pace = self._believed_ns = None

    @property
    def saves_every_seconds(self) -> int:
        """Return how much work lies between two of the checkpoints that it wrote by itself; 0: it wrote none.

        Where it is known to have begun with nothing, its first one tells, too; of one that went on from before the
        stretch that tells only if it is all that there is.
        """
        marks = sorted(set(self.own_saves_ns))
        if marks and (self.whole or len(marks) == 1):
            marks = [0, *marks]
        gaps = [later - earlier for earlier, later in pairwise(marks) if later > earlier]
        return max(1, round(median_low(gaps) / SECOND_NS)) if gaps else 0

    @property
    def saves_first_ms(self) -> int:
        """Return after how much work the first of them came, where it went on from before the stretch; else 0."""
        return 0 if self.whole or not self.own_saves_ns else self.own_saves_ns[0] // MILLI_NS

    def spans(self, *, completed: bool) -> tuple[Span, ...]:
        """Return all that is known to be its work, in order: of the attempt that got farthest, if the last did not.

        One that completed did all there is in its last attempt, whatever others were taken to have done.
        """
        reached_ns = sum(piece.work_ns for piece in self._farthest)
        return _spans(self._pieces if completed or self.position_ns >= reached_ns else self._farthest)


def pace_of(spec: JobSpec, phase: str, quotas: list[tuple[Quota, ...]]) -> Pace:
    """Return how fast members with these quotas work in a phase: as fast as the slowest of them.

    A phase that says that it can use more CPU than it needs at least is taken to do as much more with it; this is what
    the model of a node takes `cpu_bound` for.
    """
    least = most = 0
    for component in spec.components:
        found = component.range_in(phase)
        least += found.minimum.cpu_millis * component.replicas
        most += found.ceiling.cpu_millis * max(component.replicas, component.replicas_max or 0)
    if most <= least:
        return Pace(phase, Fraction(1), False)
    has = min(quota_millis(spec, each) for each in quotas)
    return Pace(phase, Fraction(max(0, min(has, most)), most), True)


def _after(pieces: list[Piece], from_ns: int) -> list[tuple[str, int]]:
    """Return how much work of which phase comes after so much of it, piece by piece."""
    found, begin_ns = [], 0
    for piece in pieces:
        end_ns = begin_ns + piece.work_ns
        if (after_ns := end_ns - max(begin_ns, from_ns)) > 0:
            found.append((piece.phase, after_ns))
        begin_ns = end_ns
    return found


def _cut(pieces: list[Piece], target_ns: int) -> list[Piece]:
    """Return the first pieces, up to so much work."""
    kept: list[Piece] = []
    for piece in pieces:
        if target_ns <= 0:
            break
        kept.append(Piece(piece.phase, min(piece.work_ns, target_ns), piece.cpu_bound))
        target_ns -= kept[-1].work_ns
    return kept


def _spans(pieces: list[Piece]) -> tuple[Span, ...]:
    """Return the pieces as spans of whole milliseconds that add up: what one is rounded down, the next has."""
    merged: list[Piece] = []
    for piece in pieces:
        if merged and (merged[-1].phase, merged[-1].cpu_bound) == (piece.phase, piece.cpu_bound):
            merged[-1] = Piece(piece.phase, merged[-1].work_ns + piece.work_ns, piece.cpu_bound)
        else:
            merged.append(piece)
    spans: list[Span] = []
    done_ns = done_ms = 0
    for piece in merged:
        done_ns += piece.work_ns
        until_ms = (done_ns + MILLI_NS // 2) // MILLI_NS
        seconds, more_ms = divmod(until_ms - done_ms, 1000)
        done_ms = until_ms
        if seconds or more_ms:
            spans.append(Span(piece.phase, seconds, piece.cpu_bound, more_ms))
    return tuple(spans)
