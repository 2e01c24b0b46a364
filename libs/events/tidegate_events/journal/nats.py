"""The journal on NATS JetStream: one history, whatever generation each frame lies in."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from nats.aio.client import Client

from tidegate_events.frame import Frame, decode
from tidegate_events.journal.archive import ArchiveDirectory
from tidegate_events.journal.base import Appended, Conflict, Raw, Recorded
from tidegate_events.journal.generations import Generation, open_first
from tidegate_events.journal.jetstream import JetStream
from tidegate_events.journal.nats_append import Appender
from tidegate_events.journal.nats_read import Reader


class NatsJournal:
    """The journal of one JetStream account; what its streams no longer hold is read from `archive`, if there is one."""

    def __init__(self, client: Client, archive: ArchiveDirectory | None = None) -> None:
        self._client = client
        js = JetStream(client)
        known: dict[int, Generation] = {}
        self._appender = Appender(client, js, known)
        self._reader = Reader(client, js, known, archive)

    async def ensure_stream(self, *, max_bytes: int, replicas: int = 1) -> None:
        """Open the first generation where there is none; a journal that exists is left as it is."""
        await open_first(self._client, max_bytes=max_bytes, replicas=replicas)

    async def append(self, subject: str, frame: Frame, *, expected_last: int | None = None) -> Appended | Conflict:
        """Append as the port says."""
        return await self._appender.append(subject, frame, expected_last)

    async def last(self, subject: str) -> Recorded | None:
        """Return the subject's last frame, read from the stream's leader."""
        last = await self._appender.last(subject)
        return None if last is None else _recorded(last)

    async def end(self) -> int:
        """Return the last sequence."""
        return await self._reader.end()

    async def read(self, after: int, until: int) -> AsyncGenerator[Recorded, None]:
        """Yield `after < seq <= until`."""
        async with aclosing(self.read_raw(after, until)) as messages:
            async for raw in messages:
                yield _recorded(raw)

    async def read_raw(self, after: int, until: int) -> AsyncGenerator[Raw, None]:
        """Yield what `read` does, as the bytes that the journal holds."""
        if after >= until:
            return
        async with aclosing(self._reader.follow(after)) as messages:
            async for raw in messages:
                yield raw
                if raw.seq >= until:
                    return

    async def follow(self, after: int) -> AsyncGenerator[Recorded, None]:
        """Yield every frame after `after`, for ever; reconnects and lost consumers do not show."""
        async with aclosing(self._reader.follow(after)) as messages:
            async for raw in messages:
                yield _recorded(raw)


def _recorded(raw: Raw) -> Recorded:
    return Recorded(raw.seq, raw.subject, decode(raw.data))
