"""What the keeper knows of history: the scheduler's state and the chain of digests, both after the same frame."""

from __future__ import annotations

from tidegate_events.contract import may_say
from tidegate_events.events import GenerationOpened
from tidegate_events.frame import decode
from tidegate_events.journal.base import Raw, Recorded
from tidegate_events.journal.chain import ChainDigest
from tidegate_events.subjects import speaks_for

from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.snapshot_store import Found
from tidegate_scheduler.state import State


class Fold:
    """Folds raw frames. One that cannot be folded raises: to skip it would fork history."""

    def __init__(self, begin: Found | None = None) -> None:
        """Begin from a snapshot that knows its chain, or from nothing."""
        self.state = State() if begin is None else begin.state
        self.chain = ChainDigest("" if begin is None else begin.info.chain)
        self.unsaved_events = 0

    @property
    def seq(self) -> int:
        """Return the last sequence that was folded."""
        return self.state.seq

    def add(self, raw: Raw) -> list[GenerationOpened]:
        """Fold the next frame; return what it says of generations.

        Raises ValueError for another frame than the next, UnreadableFrameError for what is no frame.
        """
        frame = decode(raw.data)
        evolve(self.state, Recorded(raw.seq, raw.subject, frame))
        self.chain.add(raw)
        self.unsaved_events += len(frame.events)
        if frame.writer.service != "keeper" or not speaks_for(raw.subject, frame.writer):
            return []
        return [e for e in frame.events if isinstance(e, GenerationOpened) and may_say(frame.writer, e)]
