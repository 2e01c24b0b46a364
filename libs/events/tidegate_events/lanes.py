"""The order of a consumer's work: events of one lane one after the other, lanes side by side. Pure.

It also knows how far the consumer has come: every frame up to `handled` is done with, whatever was finished first.
"""

from __future__ import annotations

from collections import deque

import msgspec

from tidegate_events.events import Event
from tidegate_events.frame import Writer


class Position(msgspec.Struct, frozen=True):
    """Every frame up to `seq` needs nothing more; `frame` is the id of that frame, so that journals are told apart."""

    seq: int = 0
    frame: str = ""


class Delivery(msgspec.Struct, frozen=True):
    """An event as it is handed to a handler. The same event may come again: after a crash, or because of a retry."""

    seq: int
    index: int
    writer: Writer
    event: Event

    @property
    def place(self) -> str:
        """Return the event's place as the journal writes places."""
        return f"{self.seq}.{self.index}"


class Work(msgspec.Struct, eq=False):
    """A delivery on its way. `before` is where its reader stood before its frame; None where a letter is retried."""

    delivery: Delivery
    lane: str
    before: Position | None
    tries: int = 0
    waits: int = 0
    first_at_ns: int = 0
    due: float = 0.0
    number: int = 0


class Lanes:
    """What is to be done, and what is being done. Times are those of a monotonic clock, in seconds."""

    def __init__(self, start: Position, window_events: int) -> None:
        self.last = start
        """The last frame that was read."""
        self._window = window_events
        self._lanes: dict[str, deque[Work]] = {}
        self._busy: set[str] = set()
        self._open: dict[int, Work] = {}
        self._number = 0

    @property
    def full(self) -> bool:
        """Say whether no more should be read: what is unfinished is bounded."""
        return len(self._open) >= self._window

    @property
    def handled(self) -> Position:
        """Return how far all is done: the place before the oldest event that is not."""
        oldest = next(iter(self._open.values()), None)
        return self.last if oldest is None or oldest.before is None else oldest.before

    def add(self, work: Work) -> None:
        """Put work at the end of its lane."""
        self._number += 1
        work.number = self._number
        self._lanes.setdefault(work.lane, deque()).append(work)
        if work.before is not None:
            self._open[work.number] = work

    def read(self, seq: int, frame: str) -> None:
        """Note that the frame `seq` was read, and its events added."""
        self.last = Position(seq, frame)

    def take(self, now: float) -> Work | None:
        """Return the oldest work whose lane is free and whose time has come; its lane is busy until it is finished."""
        ready = [lane[0] for name, lane in self._lanes.items() if name not in self._busy and lane[0].due <= now]
        work = min(ready, key=lambda each: each.number, default=None)
        if work is not None:
            self._busy.add(work.lane)
        return work

    def due(self) -> float | None:
        """Return when the next work of a free lane has its time, None where there is none."""
        return min((lane[0].due for name, lane in self._lanes.items() if name not in self._busy), default=None)

    def again(self, work: Work, due: float) -> None:
        """Leave work at the head of its lane until its time comes."""
        work.due = due
        self._busy.discard(work.lane)

    def finish(self, work: Work) -> None:
        """Take work away, done or set aside."""
        lane = self._lanes[work.lane]
        lane.popleft()
        if not lane:
            del self._lanes[work.lane]
        self._busy.discard(work.lane)
        self._open.pop(work.number, None)
