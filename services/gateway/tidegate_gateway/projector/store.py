"""Writes what frames changed: rows and position in one transaction, so a frame is in the tables once or not at all.

The position is the fence: a transaction that does not find it where its batch begins writes nothing. So a second
projector, or an answer that was lost on the way, can repeat nothing and skip nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tidegate_gateway.database.columns import big, moment, text
from tidegate_gateway.database.connection import Connection
from tidegate_gateway.database.documents import dump
from tidegate_gateway.database.generations import Generation, hold
from tidegate_gateway.projector.changes import Rows
from tidegate_gateway.projector.tables import (
    ALLOCATIONS,
    ATTEMPTS,
    CHECKPOINTS,
    EVENTS,
    JOBS,
    MAINTENANCE,
    NODES,
    QUEUES,
    WRITERS,
    Row,
    Table,
)
from tidegate_gateway.view.model import Progress


class MovedError(Exception):
    """The position is not where this projector left it: another one writes, or the tables were made anew."""


class Head(msgspec.Struct, frozen=True):
    """The journal's end as it was last seen, how many events lie before it at least, and who says so."""

    seq: int
    events_ahead: int
    projector: str


class Step(msgspec.Struct, frozen=True):
    """From where to where the position moves. `journal` is the mark of its history."""

    before: int
    progress: Progress
    last_at_ns: int | None
    journal: str


async def write_rows(connection: Connection, schema: str, rows: Rows) -> None:
    """Put rows in place; events are new by the fence, everything else replaces what was there."""
    for table, changed in (
        (JOBS, rows.jobs),
        (ATTEMPTS, rows.attempts),
        (NODES, rows.nodes),
        (ALLOCATIONS, rows.allocations),
        (CHECKPOINTS, rows.checkpoints),
        (QUEUES, rows.queues),
        (MAINTENANCE, rows.maintenance),
        (WRITERS, rows.writers),
    ):
        await _upsert(connection, schema, table, changed)
    if rows.gone_allocations:
        await connection.executemany(
            f"DELETE FROM {schema}.allocations WHERE node = $1 AND job_id = $2 AND attempt = $3 AND rank = $4",
            rows.gone_allocations,
        )
    if rows.gone_nodes:
        await connection.executemany(f"DELETE FROM {schema}.nodes WHERE node = $1", rows.gone_nodes)
    if rows.gone_maintenance:
        await connection.executemany(f"DELETE FROM {schema}.maintenance WHERE name = $1", rows.gone_maintenance)
    await connection.copy_records_to_table(EVENTS.name, records=rows.events, columns=EVENTS.columns, schema_name=schema)
    await connection.executemany(
        f"INSERT INTO {schema}.event_blocks AS known (block, at_ns_min, at_ns_max) VALUES ($1, $2, $3)"
        " ON CONFLICT (block) DO UPDATE SET at_ns_min = least(known.at_ns_min, EXCLUDED.at_ns_min),"
        " at_ns_max = greatest(known.at_ns_max, EXCLUDED.at_ns_max)",
        rows.event_blocks,
    )


async def move(connection: Connection, generation: Generation, step: Step, head: Head) -> None:
    """Move the position on. Raises MovedError and NotActiveError, and then nothing may be written."""
    await hold(connection, generation)
    moved = await connection.execute(
        f"UPDATE {generation.schema}.position SET seq = $2::bigint, events = $3,"
        " last_event_at = coalesce($4, last_event_at), journal = $5, doc = $6,"
        " head_seq = greatest($7::bigint, $2::bigint), events_ahead = $8, projector = $9, seen_at = now(),"
        " caught_up_at = CASE WHEN $2::bigint >= $7::bigint THEN now() ELSE caught_up_at END WHERE seq = $1::bigint",
        *(step.before, step.progress.seq, big(step.progress.events), moment(step.last_at_ns)),
        *(text(step.journal), dump(step.progress), head.seq, head.events_ahead, head.projector),
    )
    if moved != "UPDATE 1":
        raise MovedError(f"the position of generation {generation.number} is not at {step.before}")


async def beat(connection: Connection, generation: Generation, seq: int, head: Head) -> None:
    """Note the journal's end while nothing is written. Raises MovedError."""
    noted = await connection.execute(
        f"UPDATE {generation.schema}.position SET head_seq = greatest($2::bigint, $1::bigint),"
        " events_ahead = $3, projector = $4, seen_at = now(),"
        " caught_up_at = CASE WHEN $1::bigint >= $2::bigint THEN now() ELSE caught_up_at END WHERE seq = $1::bigint",
        *(seq, head.seq, head.events_ahead, head.projector),
    )
    if noted != "UPDATE 1":
        raise MovedError(f"the position of generation {generation.number} is not at {seq}")


async def _upsert(connection: Connection, schema: str, table: Table, rows: Sequence[Row]) -> None:
    if rows:
        arguments: Sequence[Sequence[Any]] = rows
        await connection.executemany(table.upsert(schema), arguments)
