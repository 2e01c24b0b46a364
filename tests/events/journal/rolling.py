"""What the keeper does with generations, in its shortest form: close, open the next, archive, trim."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

from nats.aio.client import Client
from tidegate_events.journal.archive import ArchiveDirectory, ArchiveWriter
from tidegate_events.journal.closing import close, open_next
from tidegate_events.journal.generations import Generation, generations, trim
from tidegate_events.journal.nats import NatsJournal


async def roll(client: Client, *, max_bytes: int = 1024**2, replicas: int = 1) -> Generation:
    """Close the newest generation and open the next one; return that."""
    newest = (await generations(client))[-1]
    await close(client, newest.number)
    return await open_next(client, newest.number, max_bytes=max_bytes, replicas=replicas)


async def archive_closed(client: Client, archive: ArchiveDirectory, scratch: Path) -> None:
    """Archive every closed generation, oldest first, and then trim it."""
    journal = NatsJournal(client)
    for generation in [each for each in await generations(client) if each.closed]:
        before = archive.list()
        file = scratch / f"{generation.stream}.tgj"
        with ArchiveWriter(
            file, first_seq=generation.first_seq, previous_digest=before[-1].info.digest if before else ""
        ) as writer:
            async with aclosing(journal.read_raw(generation.first_seq - 1, generation.last_seq)) as messages:
                async for raw in messages:
                    writer.add(raw)
        archive.put(generation.number, file)
        await trim(client, generation.number)
