"""The endpoint behind `tidegate top`: nodes, jobs that hold room, and the line, in one snapshot."""

from __future__ import annotations

from itertools import islice
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from tidegate_events.resources import Resources

from tidegate_gateway.http.cluster import node_documents
from tidegate_gateway.http.errors import json_response
from tidegate_gateway.http.jobs import SEQ_MAX
from tidegate_gateway.http.params import Parameters
from tidegate_gateway.http.queue import in_line
from tidegate_gateway.http.state import Gateway, fresh, gateway_of, journal_end
from tidegate_gateway.view import render
from tidegate_gateway.view.census import by_state
from tidegate_gateway.view.cluster import amount_held
from tidegate_gateway.view.model import ENDED_STATES, JOB_STATES, WAITING_STATES, Job
from tidegate_gateway.view.plain import plain

TOP_MAX, TOP_DEFAULT = 200, 50
ACTIVE_STATES = frozenset(JOB_STATES) - WAITING_STATES - ENDED_STATES


async def top(request: Request) -> Response:
    """GET /v1/top."""
    gateway = gateway_of(request)
    parameters = Parameters(request, "limit")
    limit = parameters.integer("limit", TOP_DEFAULT, 1, TOP_MAX)
    parameters.done()
    await fresh(gateway)
    view, now_ns = gateway.fold.view, gateway.clock.now_ns()
    end = await journal_end(gateway)
    active = [view.jobs[name] for name in islice(view.census.newest(None, ACTIVE_STATES, SEQ_MAX), limit)]
    line = await in_line(gateway, limit)
    answer = {
        "now_ns": now_ns,
        "ready": gateway.ready,
        "leader": msgspec.structs.asdict(view.leader) if view.leader else None,
        "journal": {"end": end, "folded": view.seq, "lag": None if end is None else max(0, end - view.seq)},
        "job_counts": by_state(view.census.states),
        "nodes": [{**node, "live": gateway.live.of_node(node["node"], now_ns)} for node in node_documents(gateway)],
        "jobs": [_active(gateway, job, now_ns) for job in active],
        "queue": line.first,
    }
    return json_response(answer)


def _active(gateway: Gateway, job: Job, now_ns: int) -> dict[str, Any]:
    quotas = Resources()
    for member in job.latest.members if job.latest is not None else ():
        quotas = quotas.plus(amount_held(job, member))
    live = gateway.live.of_job(job.id, job.attempt, now_ns)
    return {**render.summary(job), "quotas": plain(quotas), "live": live}
