"""The agent's incarnation: a number that grows at each start and is the epoch of the facts it writes."""

from __future__ import annotations

from pathlib import Path

from tidegate_events.journal.base import Journal

from tidegate_executor.spool.segments import write_durably


async def next_incarnation(path: Path, journal: Journal, subject: str) -> int:
    """Return the new incarnation, durable in `path` before it is used.

    Where the file is missing (a new data directory) the journal is asked, so that a node that lost its disk does not
    go back in number; with the file there, the bus may be away.
    """
    before = _recorded(path)
    if before is None:
        last = await journal.last(subject)
        before = last.frame.writer.epoch if last else 0
    write_durably(path, f"{before + 1}\n".encode())
    return before + 1


def _recorded(path: Path) -> int | None:
    return int(path.read_text()) if path.exists() else None
