"""Endpoints that answer about jobs, from the read model."""

from __future__ import annotations

import re
from itertools import islice

import structlog
from starlette.requests import Request
from starlette.responses import Response
from tidegate_events import trace

from tidegate_gateway.database import generations
from tidegate_gateway.database.connection import Database, DatabaseAwayError
from tidegate_gateway.database.loader import JobQuery, load_forgotten
from tidegate_gateway.http import queue
from tidegate_gateway.http.errors import json_response
from tidegate_gateway.http.params import Parameters
from tidegate_gateway.http.state import Gateway, find_job, fresh, gateway_of, trace_headers
from tidegate_gateway.submission import bounds
from tidegate_gateway.view import render
from tidegate_gateway.view.census import matching
from tidegate_gateway.view.model import JOB_STATES, Job

LIST_MAX, LIST_DEFAULT = 1000, 100
SEQ_MAX = 2**53
log = structlog.get_logger()
JOB_FORM = re.compile(r"[A-Za-z0-9_-]{1,64}")


async def listing(request: Request) -> Response:
    """GET /v1/jobs: newest first."""
    gateway = gateway_of(request)
    parameters = Parameters(request, "tenant", "limit", "before", repeated=("state",))
    tenant = parameters.text("tenant", bounds.TENANT, "the name of a tenant")
    limit = parameters.integer("limit", LIST_DEFAULT, 1, LIST_MAX)
    before = parameters.integer("before", SEQ_MAX, 1, SEQ_MAX)
    states = parameters.choices("state", JOB_STATES)
    parameters.done()
    await fresh(gateway)
    view = gateway.fold.view
    newest = view.census.newest(tenant, states, before)
    found = [view.jobs[name] for name in islice(newest, limit + 1)]
    total = matching(view.census.states, tenant, states)
    missing = forgotten = matching(view.census.forgotten, tenant, states)
    if forgotten and gateway.database is not None:
        order = view.forgotten_order
        wanted = JobQuery(tenant=tenant, states=states, before=before, limit=limit + 1, ended_order=order)
        if (older := await _forgotten(gateway.database, wanted)) is not None:
            found = sorted((*found, *older), key=lambda job: job.submitted_seq, reverse=True)
            missing = 0
    page, more = found[:limit], len(found) > limit
    answer = {
        "jobs": [render.summary(job) for job in page],
        "total": total + forgotten,
        "missing": missing,
        "next": page[-1].submitted_seq if page and more else None,
    }
    return json_response(answer)


async def _forgotten(database: Database, query: JobQuery) -> list[Job] | None:
    """Return jobs that are in the database alone, None while it is away: what is recent is shown without it."""
    try:
        async with database.transaction(read_only=True) as connection:
            generation = await generations.active(connection)
            return None if generation is None else await load_forgotten(connection, generation.schema, query)
    except DatabaseAwayError as error:
        log.info("jobs_without_database", why=str(error))
        return None


async def _job(request: Request) -> tuple[Gateway, Job]:
    Parameters(request).done()
    gateway = gateway_of(request)
    await fresh(gateway)
    return gateway, await find_job(gateway, request.path_params["job_id"], with_timeline=True)


async def detail(request: Request) -> Response:
    """GET /v1/jobs/{job_id}."""
    gateway, job = await _job(request)
    answer = render.detail(job)
    if job.waiting:
        answer["why"] = await queue.explain(gateway, job)
    elif queue.asks_for_phases(job):
        said = await queue.explain(gateway, job)
        if said["reasons"] and said["answered_by"] == "scheduler":  # it runs: whoever waits for nothing has no reason
            answer["why"] = said
    return json_response(answer, headers=trace_headers(job.id))


async def timeline(request: Request) -> Response:
    """GET /v1/jobs/{job_id}/timeline."""
    _, job = await _job(request)
    answer = {"job_id": job.id, "trace_id": trace.trace_id(job.id), "state": job.state, **render.timeline(job)}
    return json_response(answer, headers=trace_headers(job.id))


async def explain(request: Request) -> Response:
    """GET /v1/jobs/{job_id}/explain."""
    gateway, job = await _job(request)
    return json_response(await queue.explain(gateway, job), headers=trace_headers(job.id))


async def checkpoints(request: Request) -> Response:
    """GET /v1/checkpoints?job=."""
    gateway = gateway_of(request)
    parameters = Parameters(request, "job")
    job_id = parameters.text("job", JOB_FORM, "the id of a job")
    if job_id is None and not parameters.problems:
        parameters.problems.add("?job", "is missing", "the id of a job")
    parameters.done()
    await fresh(gateway)
    job = await find_job(gateway, job_id or "")
    answer = {
        "job_id": job.id,
        "checkpoints": [render.checkpoint(each) for each in reversed(job.checkpoints)],
        "dropped": job.checkpoints_dropped,
    }
    return json_response(answer, headers=trace_headers(job.id))
