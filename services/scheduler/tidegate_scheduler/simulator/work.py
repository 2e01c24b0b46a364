"""How far a job is in what it really does: work done, at the pace that it has, and what of it is saved."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.simulator.workload import Span, Truth

MILLI_NS = 1_000_000

Pace = tuple[int, int]
"""Work per time, as an exact fraction: (1, 1) is a job that has all that it asks for."""

FULL: Pace = (1, 1)


class Work:
    """The work of one job over all its attempts, in nanoseconds at full pace.

    `base_step` is the step of what was saved before the simulation began: checkpoints go on counting from there.
    """

    def __init__(self, truth: Truth, base_step: int = 0) -> None:
        self.truth = truth
        self.done_ns = 0
        self._ends = tuple(accumulate(span.work_ms * MILLI_NS for span in truth.spans))
        self._base_step = base_step
        self._first_save_ns = truth.saves_first_ms * MILLI_NS
        self._saved: dict[str, int] = {}
        self.saved_ns = 0
        """Where it would go on from its newest checkpoint."""

        self._pace: Pace = FULL
        self._since_ns: int | None = None
        after = truth.fails_after_seconds
        self._fails_ns = None if after is None else after * SECOND_NS
        self._stumbles_ns = [each * MILLI_NS for each in reversed(truth.stumbles_ms)]

    @property
    def span(self) -> Span | None:
        """Return what it does next, None where nothing is left to do."""
        index = bisect_right(self._ends, self.done_ns)
        return self.truth.spans[index] if index < len(self._ends) else None

    @property
    def step(self) -> int:
        """Return the step that it is at: a second of work is one."""
        return self._base_step + self.done_ns // SECOND_NS

    @property
    def lost_ns(self) -> int:
        """Return how much work would be lost if it ended now."""
        return self.done_ns - self.saved_ns

    def lost_in(self) -> list[tuple[str, int]]:
        """Return how much of that is of which phase, span by span."""
        found, begin_ns = [], 0
        for span, end_ns in zip(self.truth.spans, self._ends, strict=True):
            if (lost_ns := min(end_ns, self.done_ns) - max(begin_ns, self.saved_ns)) > 0:
                found.append((span.phase, lost_ns))
            begin_ns = end_ns
        return found

    @property
    def fails(self) -> bool:
        """Say whether it is where it fails by its own fault."""
        fails_ns = self._next_failure_ns
        return fails_ns is not None and self.done_ns >= fails_ns

    @property
    def saves(self) -> bool:
        """Say whether it is where it writes a checkpoint by itself."""
        return self.done_ns >= self._next_save_ns

    @property
    def running(self) -> bool:
        """Say whether it is being worked on."""
        return self._since_ns is not None

    def go_on(self, now_ns: int, pace: Pace) -> None:
        """Work from now on at this pace; what was done until now is counted."""
        self.stop(now_ns)
        self._pace, self._since_ns = pace, now_ns

    def stop(self, now_ns: int) -> None:
        """Count what was done until now, and work no more."""
        if self._since_ns is not None:
            done, time = self._pace
            reached = self.done_ns + (now_ns - self._since_ns) * done // time
            self.done_ns = min(reached, self._next_ns)  # an end is due at the first nanosecond by which it is reached
            self._since_ns = None

    def due_ns(self) -> int | None:
        """Return when something happens by the work alone: a span ends, it saves or fails. None while it stands."""
        done, time = self._pace
        if self._since_ns is None or not done:
            return None
        return self._since_ns + -(-(self._next_ns - self.done_ns) * time // done)

    def save(self, checkpoint: str) -> None:
        """Keep what is done under the name of a checkpoint."""
        self._saved[checkpoint] = self.saved_ns = self.done_ns
        self._first_save_ns = 0

    def drop(self) -> None:
        """Be where the newest checkpoint is: what came after it is lost."""
        self.done_ns = self.saved_ns

    def failed(self) -> None:
        """Get by the next time, where it does not fail each time."""
        if self._stumbles_ns:
            self._stumbles_ns.pop()

    def keep(self) -> None:
        """Lose nothing any more: it is finished."""
        self.saved_ns = self.done_ns

    def go_back(self, checkpoint: str) -> None:
        """Begin from a checkpoint (empty: from nothing); one of before the simulation is where that began."""
        self.done_ns = self.saved_ns = self._saved.get(checkpoint, 0)
        self._since_ns = None
        self._first_save_ns = 0
        while self._stumbles_ns and self._stumbles_ns[-1] <= self.done_ns:
            self._stumbles_ns.pop()

    @property
    def _next_failure_ns(self) -> int | None:
        return self._stumbles_ns[-1] if self._stumbles_ns else self._fails_ns

    @property
    def _next_save_ns(self) -> int:
        every_ns = self.truth.saves_every_seconds * SECOND_NS
        if not every_ns:
            return self._ends[-1] + 1
        return self._first_save_ns or self.saved_ns + every_ns

    @property
    def _next_ns(self) -> int:
        index = bisect_right(self._ends, self.done_ns)
        end_ns = self._ends[min(index, len(self._ends) - 1)]
        fails_ns = self._next_failure_ns
        if fails_ns is not None:
            end_ns = min(end_ns, fails_ns)
        return max(self.done_ns, min(end_ns, self._next_save_ns))


def share(granted: int, most: int) -> Pace:
    """Return the pace of work that could use `most` and was granted so much."""
    return FULL if granted >= most else (max(0, granted), most)


def slower(one: Pace, other: Pace) -> Pace:
    """Return the smaller of two paces."""
    return one if one[0] * other[1] <= other[0] * one[1] else other
