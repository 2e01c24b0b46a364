"""The journal in one archive file: read like any other, on a laptop with no server running, and never written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

from tidegate_events.frame import Frame, decode
from tidegate_events.journal.archive import ArchiveInfo, glance, read_archive, read_segments, read_snapshot
from tidegate_events.journal.base import Appended, Conflict, JournalError, JournalGapError, Recorded


class FileJournal:
    """The frames of an archive file. It may begin in mid-history: what lies before its first frame is a gap."""

    def __init__(self, path: Path) -> None:
        """Open the file. Raises ArchiveDamagedError, now for a bad header or trailer, while reading for the rest."""
        self._path = path
        self._last_by_subject: dict[str, int] | None = None
        self.info: ArchiveInfo = glance(path)

    def snapshot(self) -> bytes | None:
        """Return the snapshot of the state before the first frame, None where the file has none."""
        return read_snapshot(self._path)

    async def append(self, subject: str, frame: Frame, *, expected_last: int | None = None) -> Appended | Conflict:
        """Refuse: an archive never changes."""
        raise JournalError(f"{self._path} is an archive, which is only read: append on {subject} to a running journal")

    async def last(self, subject: str) -> Recorded | None:
        """Return the last frame on `subject` in this file."""
        if self._last_by_subject is None:
            self._last_by_subject = {raw.subject: raw.seq for raw in read_archive(self._path)}
        seq = self._last_by_subject.get(subject)
        if seq is None:
            return None
        raw = next(read_archive(self._path, seq - 1, seq))
        return Recorded(raw.seq, raw.subject, decode(raw.data))

    async def end(self) -> int:
        """Return the last sequence, which is the one before the first where the file has no frame."""
        return self.info.last_seq

    async def read(self, after: int, until: int) -> AsyncGenerator[Recorded, None]:
        """Yield the frames with `after < seq <= until`. Raises JournalGapError for what lies before the file."""
        if after < until and after + 1 < self.info.first_seq:
            raise JournalGapError(
                f"{self._path} begins with sequence {self.info.first_seq}: sequence {after + 1} is not in it; "
                f"read after {self.info.first_seq - 1}, or bring the archive before this one"
            )
        for segment in read_segments(self._path, after, until):
            for raw in segment:
                yield Recorded(raw.seq, raw.subject, decode(raw.data))
            await asyncio.sleep(0)

    async def follow(self, after: int) -> AsyncGenerator[Recorded, None]:
        """Yield the frames after `after` and stop at the last one, because no more will come."""
        async for recorded in self.read(after, max(self.info.last_seq, after + 1)):
            yield recorded
