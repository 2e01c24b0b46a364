"""Spans and the deriver's memory in PostgreSQL. Writing happens in the projector's transaction, beside its position."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tidegate_gateway.database.columns import text
from tidegate_gateway.database.connection import Connection
from tidegate_gateway.traces.otlp import attributes_document, attributes_of
from tidegate_gateway.traces.span import Link, Span

_COLUMNS = (
    "trace_id, span_id, parent_id, name, service, instance, kind, start_ns, end_ns, status, message, attributes,"
    " links, tenant, job_id, seq, ordinal"
)
_WRITE = """
    INSERT INTO {schema}.spans ({columns})
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::jsonb, $13::jsonb, $14, $15, $16, $17)
    ON CONFLICT (trace_id, span_id) DO NOTHING
"""
ACTIVE = "tidegate"
"""The schema whose views show the active generation."""


class Position(msgspec.Struct, frozen=True, order=True):
    """A place in the order of emission."""

    seq: int = 0
    ordinal: int = -1


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Which traces are looked for: those with a span that meets all of it. Times bound the span's start."""

    start_min_ns: int
    start_max_ns: int
    service: str = ""
    operation: str = ""
    duration_min_ns: int = 0
    duration_max_ns: int | None = None
    attributes: Mapping[str, str] = {}
    traces_max: int = 100


async def write(connection: Connection, schema: str, spans: Iterable[Span], states: Mapping[str, bytes | None]) -> None:
    """Write what a batch of frames brought, in the caller's transaction. Writing the same again changes nothing."""
    found = list(spans)
    if found:
        await connection.executemany(_WRITE.format(schema=schema, columns=_COLUMNS), [_row(span) for span in found])
        names = sorted({(span.service, span.name, span.kind) for span in found})
        await connection.executemany(
            f"INSERT INTO {schema}.span_names (service, name, kind) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", names
        )
    kept = [(text(job), data) for job, data in states.items() if data is not None]
    if kept:
        await connection.executemany(
            f"INSERT INTO {schema}.trace_state (job_id, doc) VALUES ($1, $2)"
            " ON CONFLICT (job_id) DO UPDATE SET doc = excluded.doc",
            kept,
        )
    if gone := [text(job) for job, data in states.items() if data is None]:
        await connection.execute(f"DELETE FROM {schema}.trace_state WHERE job_id = ANY($1)", gone)


async def load_states(connection: Connection, schema: str) -> dict[str, bytes]:
    """Return what the deriver remembered when the generation's position was written."""
    rows = await connection.fetch(f"SELECT job_id, doc FROM {schema}.trace_state")
    return {row["job_id"]: bytes(row["doc"]) for row in rows}


async def read_trace(connection: Connection, trace_id: str, schema: str = ACTIVE) -> list[Span]:
    """Return a trace's spans in the order of their beginning; none where there is no such trace."""
    rows = await connection.fetch(
        f"SELECT {_COLUMNS} FROM {schema}.spans WHERE trace_id = $1 ORDER BY start_ns, seq, ordinal", trace_id
    )
    return [_span(row) for row in rows]


async def find_traces(connection: Connection, query: Query, schema: str = ACTIVE) -> list[str]:
    """Return the ids of the matching traces, the one that was active last first."""
    where, values = _conditions(query)
    rows = await connection.fetch(
        f"SELECT trace_id FROM {schema}.spans WHERE {' AND '.join(where)}"
        f" GROUP BY trace_id ORDER BY max(start_ns) DESC, trace_id LIMIT {int(query.traces_max)}",
        *values,
    )
    return [row["trace_id"] for row in rows]


async def read_services(connection: Connection, schema: str = ACTIVE) -> list[str]:
    """Return the names of all services that emitted a span."""
    rows = await connection.fetch(f"SELECT DISTINCT service FROM {schema}.span_names ORDER BY service")
    return [row["service"] for row in rows]


async def read_operations(
    connection: Connection, service: str, kind: str = "", *, limit: int = 1000, schema: str = ACTIVE
) -> list[tuple[str, str]]:
    """Return (name, kind) of the spans that a service emitted, of one kind where given."""
    rows = await connection.fetch(
        f"SELECT name, kind FROM {schema}.span_names WHERE service = $1 AND ($2 = '' OR kind = $2)"
        " ORDER BY name, kind LIMIT $3",
        *(service, kind, limit),
    )
    return [(row["name"], row["kind"]) for row in rows]


async def read_after(connection: Connection, position: Position, limit: int, schema: str = ACTIVE) -> list[Span]:
    """Return the spans that follow a place in the order of emission."""
    rows = await connection.fetch(
        f"SELECT {_COLUMNS} FROM {schema}.spans WHERE (seq, ordinal) > ($1, $2) ORDER BY seq, ordinal LIMIT $3",
        *(position.seq, position.ordinal, limit),
    )
    return [_span(row) for row in rows]


async def exported(connection: Connection) -> tuple[Position, str]:
    """Return how far spans were exported, and the mark of the history that is projected.

    Another history than the one that was exported begins at its own beginning.
    """
    row = await connection.fetchrow(
        "SELECT e.seq, e.ordinal, e.journal AS exported, p.journal AS projected"
        " FROM tidegate.span_export AS e, tidegate.position AS p"
    )
    if row is None:
        return Position(), ""
    same = row["exported"] in ("", row["projected"])
    return Position(row["seq"], row["ordinal"]) if same else Position(), row["projected"]


async def note_exported(connection: Connection, position: Position, journal: str, count: int) -> None:
    """Note that the endpoint acknowledged `count` spans up to `position`; within one history it never goes back."""
    await connection.execute(
        "UPDATE tidegate.span_export"
        " SET seq = $1, ordinal = $2, journal = $3, exported = exported + $4, exported_at = now()"
        " WHERE journal NOT IN ('', $3) OR (seq, ordinal) < ($1, $2)",
        *(position.seq, position.ordinal, journal, count),
    )


def _conditions(query: Query) -> tuple[list[str], list[Any]]:
    values: list[Any] = [query.start_min_ns, query.start_max_ns]
    where = ["start_ns >= $1", "start_ns <= $2"]

    def add(condition: str, value: Any) -> None:
        values.append(value)
        where.append(condition.format(f"${len(values)}"))

    if query.service:
        add("service = {}", query.service)
    if query.operation:
        add("name = {}", query.operation)
    if query.duration_min_ns:
        add("end_ns - start_ns >= {}", query.duration_min_ns)
    if query.duration_max_ns is not None:
        add("end_ns - start_ns <= {}", query.duration_max_ns)
    for name, value in query.attributes.items():
        # A query gives every value as text; the span may hold it as text or as a number, which JSON also writes so.
        candidates = [[{"key": name, "value": {kind: value}}] for kind in ("stringValue", "intValue")]
        if value in ("true", "false"):
            candidates.append([{"key": name, "value": {"boolValue": value == "true"}}])
        add("attributes @> ANY({}::jsonb[])", [msgspec.json.encode(each).decode() for each in candidates])
    return where, values


def _row(span: Span) -> tuple[Any, ...]:
    return (
        span.trace_id,
        span.span_id,
        span.parent_id,
        span.name,
        span.service,
        span.instance,
        span.kind,
        span.start_ns,
        span.end_ns,
        span.status,
        span.message,
        msgspec.json.encode(attributes_document(span.attributes)).decode(),
        msgspec.json.encode([msgspec.to_builtins(link) for link in span.links]).decode(),
        span.tenant,
        span.job,
        span.seq,
        span.ordinal,
    )


def _span(row: Any) -> Span:
    return Span(
        seq=row["seq"],
        ordinal=row["ordinal"],
        trace_id=row["trace_id"],
        span_id=row["span_id"],
        parent_id=row["parent_id"],
        name=row["name"],
        service=row["service"],
        instance=row["instance"],
        kind=row["kind"],
        start_ns=row["start_ns"],
        end_ns=row["end_ns"],
        status=row["status"],
        message=row["message"],
        attributes=attributes_of(msgspec.json.decode(row["attributes"])),
        links=msgspec.json.decode(row["links"], type=tuple[Link, ...]),
        tenant=row["tenant"],
        job=row["job_id"],
    )
