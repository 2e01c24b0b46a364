"""The agent's incarnation: a number that grows at each start and is the epoch of the facts it writes.

On a new data directory the shell asks the journal for the last one, so that a node that lost its disk does not go
back in number; with the file there, the bus may be away.
"""

from __future__ import annotations

from pathlib import Path

from tidegate_executor.spool.segments import write_durably


def recorded_incarnation(path: Path) -> int | None:
    """Return the incarnation of the last start, None where there was none."""
    return int(path.read_text()) if path.exists() else None


def next_incarnation(path: Path, before: int) -> int:
    """Return the new incarnation, durable before it is used."""
    write_durably(path, f"{before + 1}\n".encode())
    return before + 1
