"""From a closed generation to a file that proves itself: written, read again, compared with what the journal says."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from pathlib import Path

import structlog
from tidegate_events.events import GenerationOpened
from tidegate_events.journal.archive import ArchiveDamagedError, ArchiveDirectory, ArchiveInfo, glance, inspect
from tidegate_events.journal.base import JournalError
from tidegate_events.journal.generations import Generation
from tidegate_events.journal.nats import NatsJournal

from tidegate_scheduler.snapshot import SnapshotError, read_info
from tidegate_scheduler.snapshot_store import SnapshotStore
from tidegate_scheduler.version import CORE_VERSION

SET_ASIDE_MAX = 100

log = structlog.get_logger()


class Archivist:
    """Writes one journal's generations into one directory."""

    def __init__(self, journal: NatsJournal, archive: ArchiveDirectory, snapshots: SnapshotStore) -> None:
        """`journal` reads streams alone: a file is not made from a file."""
        self._journal = journal
        self._archive = archive
        self._snapshots = snapshots

    async def archive(
        self, generation: Generation, before: GenerationOpened | None, after: GenerationOpened
    ) -> ArchiveInfo:
        """Return the proved file of a closed generation, which is written where it is not there yet.

        `before` was said when it opened, `after` when the next one did. A file that is bad, or holds another history,
        is set aside, never deleted, and written anew.
        """
        path = self._archive.path(generation.number)
        if path.exists():
            try:
                return await self._proved(path, generation, after)
            except ArchiveDamagedError as error:
                self._set_aside(path, str(error))
        began = time.monotonic()
        await self._write(generation, before)
        try:
            info = await self._proved(path, generation, after)
        except ArchiveDamagedError as error:
            self._set_aside(path, str(error))
            raise
        log.info(
            "generation_archived",
            generation=generation.number,
            file=str(path),
            frames=info.frames,
            digest=info.digest,
            seconds=round(time.monotonic() - began, 3),
        )
        return info

    async def holds(self, generation: Generation, after: GenerationOpened) -> bool:
        """Say whether the file that was proved is still there, by its ends: a look that may be taken often."""
        try:
            info = await asyncio.to_thread(glance, self._archive.path(generation.number))
        except (FileNotFoundError, ArchiveDamagedError):
            return False
        return (info.first_seq, info.last_seq, info.digest) == (
            generation.first_seq,
            generation.last_seq,
            after.sealed_digest,
        )

    async def _write(self, generation: Generation, before: GenerationOpened | None) -> None:
        writer = self._archive.begin(
            generation.number,
            first_seq=generation.first_seq,
            previous_digest="" if before is None else before.sealed_digest,
            notes={"kind": "generation", "generation": str(generation.number), "core": CORE_VERSION, "redacted": "no"},
            snapshot=await self._snapshot(generation, before),
        )
        with writer:
            reading = self._journal.read_raw(generation.first_seq - 1, generation.last_seq)
            async with aclosing(reading) as frames:
                async for raw in frames:
                    writer.add(raw)

    async def _snapshot(self, generation: Generation, before: GenerationOpened | None) -> bytes | None:
        """Return the state that the generation began with, so that its file can be verified by itself."""
        if before is None:
            return None
        try:
            data = await self._snapshots.load(before.snapshot)
            info = read_info(data)
        except SnapshotError as error:
            log.warning("archived_without_snapshot", generation=generation.number, why=str(error))
            return None
        if (info.seq, info.state_digest) != (generation.first_seq - 1, before.state_digest):
            log.warning("archived_without_snapshot", generation=generation.number, why="it is of another state")
            return None
        return data

    @staticmethod
    async def _proved(path: Path, generation: Generation, after: GenerationOpened) -> ArchiveInfo:
        """Read the whole file; return what it holds. Raises ArchiveDamagedError, JournalError for another history."""
        info = await asyncio.to_thread(inspect, path)
        holds = (info.first_seq, info.last_seq, info.frames, info.digest)
        said = (generation.first_seq, generation.last_seq, after.sealed_frames, after.sealed_digest)
        if holds != said:
            raise JournalError(
                f"{path} holds {holds} (first and last sequence, frames, digest), the journal says {said}: "
                f"is {path.parent} the archive of another journal? Give each journal its own directory."
            )
        return info

    @staticmethod
    def _set_aside(path: Path, why: str) -> None:
        for number in range(1, SET_ASIDE_MAX + 1):
            aside = path.with_name(f"{path.name}.damaged-{number}")
            if not aside.exists():
                path.rename(aside)
                log.error("archive_set_aside", file=str(path), now=str(aside), why=why)
                return
        raise JournalError(f"{path} was damaged {SET_ASIDE_MAX} times: look at its disk before anything is trimmed")
