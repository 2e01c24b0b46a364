"""Where history is read from: a file, which needs no server, or the journal on the bus. The same questions to both."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import structlog
from nats.aio.client import Client
from tidegate_events import bus
from tidegate_events.bus import BusSettings
from tidegate_events.frame import UnreadableFrameError, decode
from tidegate_events.journal.archive import ArchiveDirectory, ArchiveInfo, glance, read_archive, read_snapshot
from tidegate_events.journal.base import JournalUnavailableError, Raw, Recorded
from tidegate_events.journal.generations import generations
from tidegate_events.journal.nats import NatsJournal
from tidegate_events.journal.patience import patiently

from tidegate_scheduler.history.errors import HistoryMissingError
from tidegate_scheduler.history.verification import Redacted
from tidegate_scheduler.snapshot import decode_snapshot
from tidegate_scheduler.snapshot_store import SnapshotStore
from tidegate_scheduler.start import is_of
from tidegate_scheduler.state import State

NOTE_REDACTED = "redacted"
NOTE_CUT_PASSES = "cut_passes"
YES = "yes"
AWAY_SECONDS_MAX = 20.0
"""How long a question waits for a journal that is away: a bus of several servers elects a leader in less."""

log = structlog.get_logger()


class Source(Protocol):
    """A stretch of history. `first` is its first sequence; `redacted` is None where nothing was taken out."""

    first: int
    end: int
    redacted: Redacted | None

    def now_ns(self) -> int:
        """Return what time it is where this history still goes on; 0 where it has ended."""
        ...

    async def state(self, at_most: int) -> State:
        """Return the newest state that is kept and not later than after `at_most`: to fold on from there."""
        ...

    def read(self, after: int, until: int) -> AsyncGenerator[Recorded, None]:
        """Yield the frames with `after < seq <= until`."""
        ...

    def read_raw(self, after: int, until: int) -> AsyncGenerator[Raw, None]:
        """Yield the same frames undecoded."""
        ...


class FileSource:
    """The history in one archive file. Every byte is proved before it is used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.info: ArchiveInfo = glance(path)
        self.first, self.end = self.info.first_seq, self.info.last_seq
        self.redacted = redaction_of(self.info)

    def now_ns(self) -> int:
        """Return 0: what came after a file's end is not known."""
        return 0

    async def state(self, at_most: int) -> State:
        """Return the state before the file's first frame; `at_most` cannot lie before it."""
        del at_most
        data = read_snapshot(self.path)
        if data is not None:
            state = decode_snapshot(data)
            if state.seq == self.first - 1:
                return state
            raise HistoryMissingError(f"{self.path} begins with {self.first}, its snapshot follows {state.seq}.")
        if self.first == 1:
            return State()
        raise HistoryMissingError(
            f"{self.path} begins with sequence {self.first} and holds no snapshot of the state before it.",
            "`tidegate history bundle` writes files that hold one.",
        )

    async def read(self, after: int, until: int) -> AsyncGenerator[Recorded, None]:
        """Yield the frames with `after < seq <= until`."""
        for raw in read_archive(self.path, after, until):
            try:
                yield Recorded(raw.seq, raw.subject, decode(raw.data))
            except UnreadableFrameError as error:
                raise UnreadableFrameError(f"sequence {raw.seq} of {self.path}: {error}") from error

    async def read_raw(self, after: int, until: int) -> AsyncGenerator[Raw, None]:
        """Yield the same frames undecoded."""
        for raw in read_archive(self.path, after, until):
            yield raw


def redaction_of(info: ArchiveInfo) -> Redacted | None:
    """Return what the notes of a file say of its redaction."""
    if info.notes.get(NOTE_REDACTED) != YES:
        return None
    return Redacted(frozenset(int(seq) for seq in info.notes.get(NOTE_CUT_PASSES, "").split()))


class BusSource:
    """The journal on the bus, with the generations that lie in the archive directory."""

    def __init__(self, client: Client, journal: NatsJournal, first: int, end: int) -> None:
        self._journal = journal
        self._snapshots = SnapshotStore(client)
        self.first, self.end = first, end
        self.redacted: Redacted | None = None

    def now_ns(self) -> int:
        """Return the time."""
        return time.time_ns()

    async def state(self, at_most: int) -> State:
        """Return the newest usable snapshot of the store; without one, the beginning."""
        found = await patiently(lambda: self._usable(at_most), AWAY_SECONDS_MAX, _note_away)
        if found is not None:
            return found
        if self.first == 1:
            return State()
        raise HistoryMissingError(
            f"What came before sequence {self.first} is not here, and no snapshot lies between it and {at_most}.",
            "Name the directory of archived generations: TIDEGATE_JOURNAL_ARCHIVE_DIR.",
        )

    async def _usable(self, at_most: int) -> State | None:
        found = await self._snapshots.newest(at_most)
        usable = found is not None and found.seq >= self.first - 1 and await is_of(self._journal, found)
        return found if usable else None

    def read(self, after: int, until: int) -> AsyncGenerator[Recorded, None]:
        """Yield the frames with `after < seq <= until`."""
        return self._journal.read(after, until)

    def read_raw(self, after: int, until: int) -> AsyncGenerator[Raw, None]:
        """Yield the same frames undecoded."""
        return self._journal.read_raw(after, until)


def open_file(path: Path) -> FileSource:
    """Return the history in a file. Raises HistoryMissingError, ArchiveDamagedError."""
    try:
        return FileSource(path)
    except OSError as error:
        raise HistoryMissingError(f"{path} cannot be read: {error.strerror or error}.") from error


@asynccontextmanager
async def open_bus(settings: BusSettings, archive: Path | None) -> AsyncIterator[BusSource]:
    """Connect, and give the history of that journal; archived generations lie in `archive`."""
    client = await bus.connect(settings, bus.COMMAND_TRIES_MAX)
    try:
        directory = ArchiveDirectory(archive) if archive is not None else None
        journal = NatsJournal(client, directory)

        async def bounds() -> tuple[int, int]:
            return await _first(client, directory), await journal.end()

        first, end = await patiently(bounds, AWAY_SECONDS_MAX, _note_away)
        yield BusSource(client, journal, first, end)
    finally:
        await client.close()


def _note_away(error: JournalUnavailableError) -> None:
    log.warning("journal_away", why=str(error), waits_seconds_max=AWAY_SECONDS_MAX)


async def _first(client: Client, archive: ArchiveDirectory | None) -> int:
    """Return the first sequence that can be read: of the streams, or of what is archived right before them."""
    there = await generations(client)
    first = there[0].first_seq if there else 1
    for archived in reversed(archive.list() if archive is not None else ()):
        if archived.info.last_seq >= first - 1:
            first = min(first, archived.info.first_seq)
    return first
