"""Follows the journal into one projection: reads ahead a bounded way, writes batch by batch, and says how far it is."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import nats.errors
import structlog
from tidegate_events.journal.base import Journal, JournalError, JournalGapError, Recorded

from tidegate_gateway.database.origin import difference
from tidegate_gateway.database.starting import OtherJournalError
from tidegate_gateway.projector.projection import Projection
from tidegate_gateway.projector.store import Head

READ_AHEAD_FRAMES = 512
BATCH_FRAMES_MAX = 256
BATCH_EVENTS_MAX = 4000
BEAT_SECONDS = 1.0
END_SECONDS_MAX = 2.5

log = structlog.get_logger()


class Follower:
    """The way from the journal into one projection."""

    def __init__(self, journal: Journal, projection: Projection, name: str) -> None:
        """`name` tells in the position who writes."""
        self.wrote = False
        """Whether anything was written, a heartbeat included."""
        self._journal = journal
        self._projection = projection
        self._name = name
        self._queue: asyncio.Queue[Recorded] = asyncio.Queue(READ_AHEAD_FRAMES)
        self._queued_events = 0
        self._read_seq = projection.seq
        self._end = 0
        self._asked_at = 0.0

    async def run(self, *, to_end: bool = False) -> None:
        """Follow for ever, or until nothing is left to write. Raises what Projection.write and Journal.follow raise."""
        await self._check_history()
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(self._read())
            await self._write(to_end)
            reading.cancel()

    async def _check_history(self) -> None:
        """Raise OtherJournalError if the journal is not the one that was projected."""
        problem = await difference(self._journal, self._projection.seq, self._projection.journal)
        if problem is not None:
            remedy = "point the projector at its own journal, or project this one: tidegate-projector rebuild"
            raise OtherJournalError(f"{problem}; {remedy}")

    async def _read(self) -> None:
        async with aclosing(self._journal.follow(self._projection.seq)) as frames:
            async for recorded in frames:
                await self._queue.put(recorded)
                self._queued_events += len(recorded.frame.events)
                self._read_seq = recorded.seq

    async def _write(self, to_end: bool) -> None:
        while True:
            batch = await self._next_batch()
            known = await self._look_ahead()
            head = Head(self._end, self._queued_events + max(0, self._end - self._read_seq), self._name)
            if batch:
                await self._projection.write(batch, head)
                self.wrote = True
            elif known:
                await self._projection.beat(head)
                self.wrote = True
            if to_end and known and self._projection.seq >= self._end:
                return

    async def _next_batch(self) -> list[Recorded]:
        """Return what is there, none if nothing comes for a heartbeat's time."""
        try:
            async with asyncio.timeout(BEAT_SECONDS):
                batch = [await self._queue.get()]
        except TimeoutError:
            return []
        events = len(batch[0].frame.events)
        while len(batch) < BATCH_FRAMES_MAX and events < BATCH_EVENTS_MAX and not self._queue.empty():
            batch.append(self._queue.get_nowait())
            events += len(batch[-1].frame.events)
        self._queued_events -= events
        return batch

    async def _look_ahead(self) -> bool:
        """Ask for the journal's end now and then; say whether it is known now, for no heartbeat may claim a guess."""
        now = asyncio.get_running_loop().time()
        if now - self._asked_at >= BEAT_SECONDS:
            try:
                self._end = await self._ask_end()
            except JournalGapError:
                raise
            except (JournalError, nats.errors.Error, TimeoutError) as error:
                log.warning("journal_away", error=str(error), after=self._projection.seq)
                return False
            self._asked_at = asyncio.get_running_loop().time()
        self._end = max(self._end, self._read_seq)
        return True

    async def _ask_end(self) -> int:
        async with asyncio.timeout(END_SECONDS_MAX):
            return await self._journal.end()
