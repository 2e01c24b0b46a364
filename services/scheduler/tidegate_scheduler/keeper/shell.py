"""The keeper's shell: follows the journal, saves states, opens the next generation in time, archives and trims.

Three loops: one keeps up with the journal and rolls, one archives what is closed, so that a long archive never delays
a roll, and one seals on the bus what is closed and whole in every copy, which nobody waits for. Whatever it does may
be done again: a keeper that was killed between any two steps looks at what there is and goes on from there. Only
between closing a generation and opening the next one do writers wait.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from itertools import pairwise

import msgspec
import structlog
from tidegate_events.cancellation import honour_cancellation
from tidegate_events.clock import Clock
from tidegate_events.events import GenerationOpened
from tidegate_events.journal.base import (
    JournalError,
    JournalForkedError,
    JournalFullError,
    JournalGapError,
    JournalUnavailableError,
)
from tidegate_events.journal.generations import Generation, forked
from tidegate_events.journal.nats import NatsJournal
from tidegate_events.process import say_ready

from tidegate_scheduler.keeper.archiving import Archivist
from tidegate_scheduler.keeper.fold import Fold
from tidegate_scheduler.keeper.settings import CLOSED_MAX, Settings
from tidegate_scheduler.keeper.streams import JournalStreams
from tidegate_scheduler.keeper.voice import Opening, Voice
from tidegate_scheduler.snapshot import SnapshotError
from tidegate_scheduler.snapshot_store import Kept, SnapshotStore, snapshot_name
from tidegate_scheduler.start import is_of

RETRY_SECONDS_MAX = 10.0

log = structlog.get_logger()


class Ports(msgspec.Struct, frozen=True):
    """What the keeper works on. `journal` also reads what is archived already."""

    streams: JournalStreams
    journal: NatsJournal
    snapshots: SnapshotStore
    archivist: Archivist
    clock: Clock


class HistoryForkedError(Exception):
    """The journal says something else of a generation than what was folded here: somebody must look."""


class Keeper:
    """One keeper process; there must be one at a time."""

    def __init__(self, settings: Settings, ports: Ports) -> None:
        self._settings = settings
        self._streams = ports.streams
        self._journal = ports.journal
        self._snapshots = ports.snapshots
        self._archivist = ports.archivist
        self._voice = Voice(ports.journal, ports.clock, settings.instance)
        self._fold: Fold | None = None
        self._unsaid: list[Opening] = []
        self._proved: set[int] = set()
        self._folded_at = -math.inf
        self._unclosed = 0

    async def run(self) -> None:
        """Keep until cancelled. Raises what cannot be mended: a gap, a fork, a strange frame, another keeper."""
        async with asyncio.TaskGroup() as tasks:
            await self._until_done("begin", self.begin)
            await self._until_done("keep", self.keep)
            say_ready()
            tasks.create_task(self._for_ever("keep", self.keep))
            tasks.create_task(self._for_ever("archive", self.archive))
            tasks.create_task(self._for_ever("seal", self.seal))

    async def _for_ever(self, what: str, act: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._until_done(what, act)
            await asyncio.sleep(self._settings.poll_seconds)

    async def _until_done(self, what: str, act: Callable[[], Awaitable[None]]) -> None:
        """Try until it is done: what the bus or the disk refuses now it may take later; nothing is lost till then."""
        wait_seconds = self._settings.poll_seconds
        while True:
            honour_cancellation()
            try:
                return await act()
            except (JournalGapError, JournalForkedError):
                raise
            except (JournalError, SnapshotError, OSError) as error:
                log.error("keeper_waits", what=what, why=str(error), wait_seconds=wait_seconds)
            await asyncio.sleep(wait_seconds)
            wait_seconds = min(RETRY_SECONDS_MAX, 2 * wait_seconds)

    # ---- beginning ----

    async def begin(self) -> None:
        """Go on from the newest snapshot before whatever is still to be said of the journal."""
        there = await self._with_a_live_one()
        await self._snapshots.ensure(max_bytes=self._settings.snapshots_bytes_max)
        found = await self._snapshots.find(await self._nothing_unsaid_before(there))
        if found is not None and not found.info.chain:
            log.warning("snapshot_without_chain", seq=found.info.seq)
            found = None
        if found is not None and not await is_of(self._journal, found.state):
            log.error("snapshot_of_another_journal", seq=found.info.seq, digest=found.info.state_digest)
            found = None
        self._fold = Fold(found)
        self._unsaid.clear()
        await self._voice.begin()
        log.info("keeper_begins", seq=self._fold.seq, end=there[-1].last_seq, generation=there[-1].number)

    async def _nothing_unsaid_before(self, there: tuple[Generation, ...]) -> int:
        """Return the last sequence whose state is needed: of the first generation after which nothing was said."""
        if await self._follows_an_import(there[0]):
            return there[0].first_seq - 1
        for generation, following in pairwise(there):
            if await self._streams.opening(following) is None:
                return generation.last_seq
        return there[-1].last_seq

    async def _follows_an_import(self, oldest: Generation) -> bool:
        """Say whether the first generation was imported, never a stream here: nobody has said where the next began."""
        return oldest.number == 2 and await self._streams.opening(oldest) is None

    async def _there(self) -> tuple[Generation, ...]:
        there = await self._streams.generations()
        if not there:
            raise JournalUnavailableError("the bus has no journal yet")
        for old, following in pairwise(there):
            if old.surplus:
                raise forked(old, following)
        return there

    async def _with_a_live_one(self) -> tuple[Generation, ...]:
        """Return the generations; where somebody died between closing and opening, go on: every writer waits."""
        there = await self._there()
        return there if there[-1].live else await self._roll(there[-1])

    # ---- keeping up ----

    async def keep(self) -> None:
        """Fold what there is, save what is due, say which generations opened, and roll where it is time.

        Folding opens a reader on the bus, so it waits for a while where nothing else asks for it.
        """
        there = await self._with_a_live_one()
        if self._may_fold_later(there):
            return
        self._folded_at = time.monotonic()
        if self._known.seq < there[0].first_seq and await self._follows_an_import(there[0]):
            imported = msgspec.structs.replace(there[0], number=1, first_seq=1, last_seq=there[0].first_seq - 1)
            await self._fold_to(imported.last_seq)
            await self._note_opening(imported)
        for number, generation in enumerate(there):
            await self._fold_to(generation.last_seq)
            if number + 1 < len(there) and self._known.seq == generation.last_seq:
                await self._note_opening(generation)
        said = await self._say_openings(there[-1])
        await self._save_if_due(there)
        if said and self._is_time(there):
            # Where the next one could not follow at once, or no state can be saved, no generation is closed.
            await self._streams.check_room(there[-1], self._settings.generation_bytes)
            await self._save(there)
            await self._roll(there[-1])
            await self.keep()

    def _may_fold_later(self, there: tuple[Generation, ...]) -> bool:
        if self._unsaid or self._known.seq < there[-1].first_seq or self._is_over_share(there[-1]):
            return False
        return time.monotonic() - self._folded_at < self._settings.fold_seconds

    @property
    def _known(self) -> Fold:
        assert self._fold is not None, "begin comes first"
        return self._fold

    async def _fold_to(self, until: int) -> None:
        fold = self._known
        if fold.seq >= until:
            return
        async with aclosing(self._journal.read_raw(fold.seq, until)) as frames:
            async for raw in frames:
                for said in fold.add(raw):
                    self._hear(said)

    def _hear(self, said: GenerationOpened) -> None:
        """Drop what is in history by now. Raises HistoryForkedError where it is not what was folded here."""
        for opening in self._unsaid:
            if opening.generation != said.generation:
                continue
            known = (opening.first_seq, opening.sealed_frames, opening.sealed_digest)
            if known != (said.first_seq, said.sealed_frames, said.sealed_digest):
                raise HistoryForkedError(f"{said} was said, and {opening} was folded")
            self._unsaid.remove(opening)
            return

    async def _note_opening(self, closed: Generation) -> None:
        """Save the state at the end of a closed generation, and note what will be said of the next one."""
        number = closed.number + 1
        if self._known.state.header.generation >= number or any(each.generation == number for each in self._unsaid):
            return
        kept = await self._save_now()
        opening = Opening(
            generation=number,
            first_seq=closed.last_seq + 1,
            sealed_frames=closed.last_seq - closed.first_seq + 1,
            sealed_digest=self._known.chain.text(),
            snapshot=kept.name,
            state_digest=kept.info.state_digest,
        )
        self._unsaid.append(opening)

    async def _say_openings(self, live: Generation) -> bool:
        """Say what is in no frame up to the end, which was looked at first: an earlier life may have said it.

        False where the next generation must wait for that. Where the live one is full it must not: it was filled while
        nobody could say it, and only the next one has room for it.
        """
        try:
            for opening in self._unsaid:
                await self._voice.say(opening)
        except JournalFullError as error:
            if not self._is_over_share(live):
                raise
            log.error("generation_full_before_its_opening", unsaid=len(self._unsaid), why=str(error))
            return True
        return not self._unsaid

    # ---- snapshots ----

    async def _save_if_due(self, there: tuple[Generation, ...]) -> None:
        if self._known.unsaved_events >= self._settings.snapshot_events:
            await self._save(there)

    async def _save(self, there: tuple[Generation, ...]) -> None:
        await self._save_now()
        needed = {snapshot_name(generation.first_seq - 1) for generation in there}
        await self._snapshots.prune(self._settings.snapshots_kept, needed=needed)

    async def _save_now(self) -> Kept:
        began = time.monotonic()
        fold = self._known
        kept = await self._snapshots.save(fold.state, fold.chain.text())
        fold.unsaved_events = 0
        log.info(
            "snapshot_saved",
            snapshot=kept.name,
            size_bytes=kept.size_bytes,
            digest=kept.info.state_digest,
            seconds=round(time.monotonic() - began, 3),
        )
        return kept

    # ---- generations ----

    def _is_time(self, there: tuple[Generation, ...]) -> bool:
        if not self._is_over_share(there[-1]):
            return False
        if len(there) - 1 >= CLOSED_MAX:
            if self._unclosed != there[-1].number:
                self._unclosed = there[-1].number
                why = f"{CLOSED_MAX} wait for the archive already"
                log.error("journal_not_closed", generation=there[-1].number, why=why)
            return False
        return True

    def _is_over_share(self, live: Generation) -> bool:
        limit = self._settings.generation_bytes
        if live.limit_bytes > 0:
            limit = min(limit, live.limit_bytes)
        return live.used_bytes * 100 >= limit * self._settings.roll_percent

    async def _roll(self, live: Generation) -> tuple[Generation, ...]:
        """Close the generation, open the next; return what there is then."""
        began = time.monotonic()
        closed = await self._streams.close(live.number)
        opened = await self._streams.open_next(live.number, max_bytes=self._settings.generation_bytes)
        log.info(
            "journal_rolled",
            generation=opened.number,
            first_seq=opened.first_seq,
            closed_bytes=closed.used_bytes,
            gap_ms=round((time.monotonic() - began) * 1000, 1),
        )
        return await self._there()

    # ---- archive ----

    async def archive(self) -> None:
        """Bring every closed generation into the archive, prove the file, and only then trim, oldest first."""
        there = await self._there()
        for old, following in pairwise(there):
            after = await self._streams.opening(following)
            if after is None:
                break  # its digest is not in the journal yet
            if old.number not in self._proved or not await self._archivist.holds(old, after):
                self._proved.discard(old.number)
                before = await self._streams.opening(old) if old.number > 1 else None
                await self._archivist.archive(old, before, after)
                self._proved.add(old.number)
        for old in there[: max(0, len(there) - 1 - self._settings.sealed_kept)]:
            if old.number not in self._proved:
                return
            await self._streams.trim(old.number)
            log.info("generation_trimmed", generation=old.number, stream=old.stream, freed_bytes=old.used_bytes)

    async def seal(self) -> None:
        """Seal on the bus what is closed and whole in every copy; what is not is looked at again."""
        for old in (await self._there())[:-1]:
            if not old.sealed and await self._streams.seal(old.number):
                log.info("generation_sealed", generation=old.number)
