"""The endpoint behind `tidegate top`: nodes, jobs that hold room, and the line, in one snapshot."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from tidegate_events.resources import Resources

from tidegate_gateway.http.cluster import node_documents
from tidegate_gateway.http.errors import json_response
from tidegate_gateway.http.params import Parameters
from tidegate_gateway.http.queue import in_line
from tidegate_gateway.http.state import Gateway, fresh, gateway_of, journal_end
from tidegate_gateway.view import render
from tidegate_gateway.view.cluster import amount_held
from tidegate_gateway.view.model import Job
from tidegate_gateway.view.plain import plain

TOP_MAX, TOP_DEFAULT = 200, 50


async def top(request: Request) -> Response:
    """GET /v1/top."""
    gateway = gateway_of(request)
    parameters = Parameters(request, "limit")
    limit = parameters.integer("limit", TOP_DEFAULT, 1, TOP_MAX)
    parameters.done()
    await fresh(gateway)
    view, now_ns = gateway.fold.view, gateway.clock.now_ns()
    end = await journal_end(gateway)
    active = (job for job in reversed(view.jobs.values()) if not job.waiting and not job.ended)
    _, line = await in_line(gateway)
    answer = {
        "now_ns": now_ns,
        "ready": gateway.ready,
        "leader": msgspec.structs.asdict(view.leader) if view.leader else None,
        "journal": {"end": end, "folded": view.seq, "lag": None if end is None else max(0, end - view.seq)},
        "job_counts": Counter(job.state for job in view.jobs.values()),
        "nodes": [{**node, "live": gateway.live.of_node(node["node"], now_ns)} for node in node_documents(gateway)],
        "jobs": [_active(gateway, job, now_ns) for job in islice(active, limit)],
        "queue": line[:limit],
    }
    return json_response(answer)


def _active(gateway: Gateway, job: Job, now_ns: int) -> dict[str, Any]:
    quotas = Resources()
    for member in job.latest.members if job.latest is not None else ():
        quotas = quotas.plus(amount_held(job, member))
    live = gateway.live.of_job(job.id, job.attempt, now_ns)
    return {**render.summary(job), "quotas": plain(quotas), "live": live}
