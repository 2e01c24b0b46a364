"""The journal in memory: for tests of what stands on it, and for simulations; same contract as the real one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from tidegate_events.frame import Frame, decode, encode
from tidegate_events.journal.base import Appended, Conflict, Recorded


class MemoryJournal:
    """Frames in a list. Encodes and decodes each, so that what comes back is what the wire would give."""

    def __init__(self) -> None:
        self._frames: list[Recorded] = []
        self._seq_by_frame_id: dict[str, int] = {}
        self._last_by_subject: dict[str, int] = {}
        self._grown = asyncio.Condition()

    async def append(self, subject: str, frame: Frame, *, expected_last: int | None = None) -> Appended | Conflict:
        """Append as the port says; never unavailable, never full."""
        data = encode(frame)
        if (seq := self._seq_by_frame_id.get(frame.writer.frame_id)) is not None:
            return Appended(seq, duplicate=True)
        actual = self._last_by_subject.get(subject, 0)
        if expected_last is not None and expected_last != actual:
            return Conflict(expected_last, actual)
        async with self._grown:
            seq = len(self._frames) + 1
            self._frames.append(Recorded(seq, subject, decode(data)))
            self._seq_by_frame_id[frame.writer.frame_id] = seq
            self._last_by_subject[subject] = seq
            self._grown.notify_all()
        return Appended(seq)

    async def last(self, subject: str) -> Recorded | None:
        """Return the last frame on `subject`."""
        seq = self._last_by_subject.get(subject)
        return self._frames[seq - 1] if seq else None

    async def end(self) -> int:
        """Return the last sequence."""
        return len(self._frames)

    async def read(self, after: int, until: int) -> AsyncGenerator[Recorded, None]:
        """Yield the frames with `after < seq <= until`."""
        for recorded in self._frames[after:until]:
            yield recorded

    async def follow(self, after: int) -> AsyncGenerator[Recorded, None]:
        """Yield every frame after `after`, for ever."""
        while True:
            async with self._grown:
                while len(self._frames) <= after:
                    await self._grown.wait()
            for recorded in self._frames[after:]:
                after = recorded.seq
                yield recorded
