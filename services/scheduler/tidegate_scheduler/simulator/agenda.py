"""What will happen in a simulation, by time: what was put down first comes first among what happens at one time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush

Act = Callable[[int], None]


class Entry:
    """Something that will happen at `at_ns`, unless it is cancelled before."""

    __slots__ = ("act", "at_ns", "background", "over")

    def __init__(self, at_ns: int, act: Act, background: bool) -> None:
        self.at_ns = at_ns
        self.act = act
        self.background = background
        self.over = False


class Agenda:
    """The entries. `pending` counts those that are not in the background: by these alone the simulation goes on.

    `happened_ns` is when the last of them happened.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Entry]] = []
        self._order = 0
        self.pending = self.happened_ns = 0

    def at(self, at_ns: int, act: Act, *, background: bool = False) -> Entry:
        """Let `act(at_ns)` happen then."""
        entry = Entry(at_ns, act, background)
        self._order += 1
        self.pending += not background
        heappush(self._heap, (at_ns, self._order, entry))
        return entry

    def cancel(self, entry: Entry | None) -> None:
        """Let it not happen; nothing changes where it has happened, was cancelled before, or is None."""
        if entry is not None and not entry.over:
            entry.over = True
            self.pending -= not entry.background

    @property
    def next_ns(self) -> int | None:
        """Return when the next entry is due."""
        while self._heap and self._heap[0][2].over:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now_ns: int) -> Iterator[Act]:
        """Take and yield what is due by now, also what is put down for now meanwhile."""
        while (at_ns := self.next_ns) is not None and at_ns <= now_ns:
            entry = heappop(self._heap)[2]
            entry.over = True
            if not entry.background:
                self.pending -= 1
                self.happened_ns = now_ns
            yield entry.act
