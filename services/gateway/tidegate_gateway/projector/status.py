"""How far each generation is, as the database tells it."""

from __future__ import annotations

from datetime import datetime

import msgspec

from tidegate_gateway.database.connection import Connection


class GenerationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the view `tidegate.projection_status`. `lag_events` counts frames not read yet as one event each."""

    generation: int
    state: str
    fold_version: int
    projector: str
    seq: int
    head_seq: int
    lag_frames: int
    lag_events: int
    lag_seconds: float
    events: int
    last_event_at: datetime | None
    caught_up_at: datetime
    seen_at: datetime


async def read_status(connection: Connection) -> list[GenerationStatus]:
    """Return every generation's status; none where nothing was ever projected."""
    if not await connection.fetchval("SELECT to_regclass('tidegate.projection_status') IS NOT NULL"):
        return []
    rows = await connection.fetch("SELECT * FROM tidegate.projection_status ORDER BY generation")
    return [GenerationStatus(**dict(row)) for row in rows]


def as_text(status: list[GenerationStatus]) -> str:
    """Return it as a table for people."""
    if not status:
        return "nothing is projected yet: start tidegate-projector"
    lines = [f"{'generation':>10}  {'state':<9} {'frame':>9} {'of':>9} {'lag':>8}  {'events':>9}  projector"]
    for one in status:
        lag, at = f"{one.lag_seconds:.1f} s", f"{one.seq:>9} {one.head_seq:>9}"
        lines.append(f"{one.generation:>10}  {one.state:<9} {at} {lag:>8}  {one.events:>9}  {one.projector}")
    return "\n".join(lines)
