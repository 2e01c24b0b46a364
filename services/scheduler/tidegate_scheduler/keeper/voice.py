"""What the keeper itself writes: that a generation opened, once, guarded by the last sequence on its own subject."""

from __future__ import annotations

import msgspec
import structlog
from tidegate_events.clock import Clock
from tidegate_events.events import GenerationOpened
from tidegate_events.frame import Frame, Writer
from tidegate_events.journal.base import Appended, Conflict, Journal
from tidegate_events.subjects import fact

log = structlog.get_logger()


class DisplacedError(Exception):
    """Another keeper writes under this one's name: two of them must not keep one journal."""


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """What a generation's beginning is known by, before it is said (the fields are those of the event)."""

    generation: int
    first_seq: int
    sealed_frames: int
    sealed_digest: str
    snapshot: str
    state_digest: str


class Voice:
    """One life of one keeper as a writer."""

    def __init__(self, journal: Journal, clock: Clock, instance: str) -> None:
        self._journal = journal
        self._clock = clock
        self._instance = instance
        self._subject = fact("keeper", instance)
        self._epoch = self._last_seq = self._next_seq = 0

    async def begin(self) -> None:
        """Take an epoch of this life alone, above that of whoever wrote last, whatever the clock says."""
        last = await self._journal.last(self._subject)
        self._last_seq = 0 if last is None else last.seq
        self._epoch = max(self._clock.now_ns(), 0 if last is None else last.frame.writer.epoch + 1)
        self._next_seq = 0

    async def say(self, opening: Opening) -> None:
        """Append GenerationOpened; what it says is known when it is folded back.

        Raises DisplacedError when another keeper has written meanwhile, JournalUnavailableError in doubt: fold first,
        and say it again if it is not there.
        """
        writer = Writer("keeper", self._instance, self._epoch, self._next_seq)
        self._next_seq += 1
        event = GenerationOpened(id=writer.event_id(0), at_ns=self._clock.now_ns(), **msgspec.structs.asdict(opening))
        answer = await self._journal.append(self._subject, Frame(writer, (event,)), expected_last=self._last_seq)
        if isinstance(answer, Appended):
            self._last_seq = answer.seq
            log.info("generation_opened", seq=answer.seq, **msgspec.structs.asdict(opening))
        else:
            await self._catch_up(answer)

    async def _catch_up(self, conflict: Conflict) -> None:
        """Go on from an earlier try of this life that arrived late; give way to anybody else."""
        last = await self._journal.last(self._subject)
        if last is None or last.frame.writer.epoch != self._epoch:
            raise DisplacedError(
                f"{self._subject} is at {conflict.actual}, not at {conflict.expected}: "
                "another keeper writes there, and one journal has one keeper"
            )
        self._last_seq = last.seq
