"""Loads the view that was folded from a generation's rows, so that nobody has to fold history from its beginning."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec
from tidegate_events.events import JobSubmitted
from tidegate_events.resources import Resources

from tidegate_gateway.database import documents
from tidegate_gateway.database.connection import Connection
from tidegate_gateway.view.model import (
    ATTEMPTS_MAX,
    CHECKPOINTS_MAX,
    ENDED_JOBS_MAX,
    TIMELINE_FIRST_MAX,
    TIMELINE_NEWEST_MAX,
    Attempt,
    Checkpoint,
    Entry,
    Forgotten,
    Hold,
    Job,
    Node,
    Timeline,
    WriterSeen,
)
from tidegate_gateway.view.projection import View

ENDED = "('completed', 'failed', 'cancelled', 'rejected')"
_JOB_COLUMNS = "job_id, tenant, spec, doc, events"
EVENT_COLUMNS = "seq, index, doc, service, instance, epoch, writer_seq, void"


async def load_view(
    connection: Connection, schema: str, *, ended_jobs_max: int = ENDED_JOBS_MAX, keeps_timelines: bool = True
) -> View:
    """Return the view at the generation's position; to be called in a transaction of one snapshot.

    Jobs that run or wait get their timelines; those that ended have an empty one whose `dropped` counts all their
    events, which are read from the database when somebody asks. Raises UnreadableRowError.
    """
    view = View(ended_jobs_max=ended_jobs_max, keeps_timelines=keeps_timelines)
    progress = documents.progress_of(await connection.fetchval(f"SELECT doc FROM {schema}.position"))
    rows = await connection.fetch(
        f"SELECT {_JOB_COLUMNS} FROM {schema}.jobs WHERE state NOT IN {ENDED} OR ended_order > $1"
        " ORDER BY submitted_seq, job_id",
        progress.ended - ended_jobs_max,
    )
    jobs = await _jobs(connection, schema, rows, with_timelines=keeps_timelines)
    forgotten = await connection.fetch(
        f"SELECT job_id, tenant, state, spec_digest FROM {schema}.jobs WHERE state IN {ENDED} AND ended_order <= $1",
        progress.ended - ended_jobs_max,
    )
    gone = {row["job_id"]: Forgotten(row["tenant"], row["state"], row["spec_digest"]) for row in forgotten}
    view.resume(progress, jobs, await _nodes(connection, schema), gone)
    for row in await connection.fetch(f"SELECT doc FROM {schema}.queues"):
        queue = documents.queue_of(row["doc"])
        view.queues[queue.tenant] = queue
    for row in await connection.fetch(f"SELECT doc FROM {schema}.maintenance"):
        window = documents.maintenance_of(row["doc"])
        view.maintenance[window.name] = window
    for row in await connection.fetch(f"SELECT * FROM {schema}.writers"):
        seen = WriterSeen(row["epoch"], row["writer_seq"], row["last_seq"], row["last_at_ns"])
        view.writers[(row["service"], row["instance"])] = seen
    return view


async def load_job(connection: Connection, schema: str, job_id: str) -> Job | None:
    """Return one job whole, timeline included; None where there is none. Raises UnreadableRowError."""
    rows = await connection.fetch(f"SELECT {_JOB_COLUMNS} FROM {schema}.jobs WHERE job_id = $1", job_id)
    jobs = await _jobs(connection, schema, rows, with_timelines=True, also_ended=True)
    return jobs[0] if jobs else None


class JobQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs that memory has forgotten: those that ended up to `ended_order` and match the rest."""

    tenant: str | None
    states: frozenset[str]
    before: int
    limit: int
    ended_order: int


async def load_forgotten(connection: Connection, schema: str, query: JobQuery) -> list[Job]:
    """Return jobs without their timelines, the newest first. Raises UnreadableRowError."""
    rows = await connection.fetch(
        f"SELECT {_JOB_COLUMNS} FROM {schema}.jobs WHERE submitted_seq < $1 AND ended_order <= $2"
        " AND ($3::text IS NULL OR tenant = $3) AND (cardinality($4::text[]) = 0 OR state = ANY($4))"
        " ORDER BY submitted_seq DESC, job_id DESC LIMIT $5",
        *(query.before, query.ended_order, query.tenant, sorted(query.states), query.limit),
    )
    return await _jobs(connection, schema, rows, with_timelines=False)


async def _jobs(
    connection: Connection, schema: str, rows: list[Any], *, with_timelines: bool, also_ended: bool = False
) -> list[Job]:
    names = [row["job_id"] for row in rows]
    attempts = await _attempts(connection, schema, names)
    checkpoints = await _checkpoints(connection, schema, names)
    jobs = [documents.job_of(row, attempts[row["job_id"]], checkpoints[row["job_id"]], Timeline()) for row in rows]
    wanted = [job for job in jobs if with_timelines and (also_ended or not job.ended)]
    entries = await _entries(connection, schema, wanted)
    for job in jobs:
        first = entries[job.id][:TIMELINE_FIRST_MAX]
        newest = entries[job.id][TIMELINE_FIRST_MAX:]
        dropped = max(0, job.events - len(first) - len(newest))
        job.timeline = Timeline.restored(first, newest, dropped)
    return jobs


async def _attempts(connection: Connection, schema: str, jobs: list[str]) -> dict[str, list[Attempt]]:
    rows = await connection.fetch(
        f"""
        SELECT wanted.job_id, a.doc FROM unnest($1::text[]) AS wanted (job_id) CROSS JOIN LATERAL (
            SELECT attempt, doc FROM {schema}.attempts WHERE attempts.job_id = wanted.job_id
            ORDER BY attempt DESC LIMIT {ATTEMPTS_MAX}
        ) AS a ORDER BY wanted.job_id, a.attempt
        """,
        jobs,
    )
    found: dict[str, list[Attempt]] = defaultdict(list)
    for row in rows:
        found[row["job_id"]].append(documents.attempt_of(row["doc"]))
    return found


async def _checkpoints(connection: Connection, schema: str, jobs: list[str]) -> dict[str, list[Checkpoint]]:
    rows = await connection.fetch(
        f"""
        SELECT wanted.job_id, c.doc FROM unnest($1::text[]) AS wanted (job_id) CROSS JOIN LATERAL (
            SELECT ordinal, doc FROM {schema}.checkpoints WHERE checkpoints.job_id = wanted.job_id
            ORDER BY ordinal DESC LIMIT {CHECKPOINTS_MAX}
        ) AS c ORDER BY wanted.job_id, c.ordinal
        """,
        jobs,
    )
    found: dict[str, list[Checkpoint]] = defaultdict(list)
    for row in rows:
        found[row["job_id"]].append(documents.checkpoint_of(row["doc"]))
    return found


async def _entries(connection: Connection, schema: str, jobs: list[Job]) -> dict[str, list[Entry]]:
    """Return the first and the newest events of each job, in order, its submission the first of them.

    What came before that (a cancellation of a job that was not there yet) is history, but not the job's.
    """
    rows = await connection.fetch(
        f"""
        SELECT DISTINCT ON (wanted.job_id, e.seq, e.index) wanted.job_id, e.*
        FROM unnest($1::text[], $2::bigint[]) AS wanted (job_id, since) CROSS JOIN LATERAL (
            (SELECT {EVENT_COLUMNS} FROM {schema}.events
             WHERE events.job_id = wanted.job_id AND events.seq >= wanted.since
             ORDER BY seq, index LIMIT {TIMELINE_FIRST_MAX})
            UNION ALL
            (SELECT {EVENT_COLUMNS} FROM {schema}.events
             WHERE events.job_id = wanted.job_id AND events.seq >= wanted.since
             ORDER BY seq DESC, index DESC LIMIT {TIMELINE_NEWEST_MAX})
        ) AS e ORDER BY wanted.job_id, e.seq, e.index
        """,
        [job.id for job in jobs],
        [job.submitted_seq for job in jobs],
    )
    found: dict[str, list[Entry]] = defaultdict(list)
    for row in rows:
        entry = documents.entry_of(row)
        if found[row["job_id"]] or (isinstance(entry.event, JobSubmitted) and not entry.void):
            found[row["job_id"]].append(entry)
    return found


async def _nodes(connection: Connection, schema: str) -> list[Node]:
    nodes = {}
    for row in await connection.fetch(f"SELECT doc FROM {schema}.nodes ORDER BY node"):
        node = documents.node_of(row["doc"])
        nodes[node.name] = node
    for row in await connection.fetch(f"SELECT * FROM {schema}.allocations ORDER BY node, job_id, attempt, rank"):
        amount = Resources(row["cpu_millis"], row["memory_mib"], row["gpus"], row["gpu_memory_mib"], row["gpu_millis"])
        key = (row["job_id"], row["attempt"], row["rank"])
        nodes[row["node"]].holds[key] = Hold(row["tenant"], row["sandbox"], amount)
    return list(nodes.values())
