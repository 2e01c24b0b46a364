"""Endpoints of the tenants' queues: settings, and what each tenant uses of the cluster."""

from __future__ import annotations

from typing import Any

import structlog
from starlette.requests import Request
from starlette.responses import Response
from tidegate_events.resources import Resources

from tidegate_gateway.acts import queues as acts
from tidegate_gateway.acts.base import Asked
from tidegate_gateway.http.asking import permit_operator, read_asked
from tidegate_gateway.http.errors import json_response
from tidegate_gateway.http.params import Parameters
from tidegate_gateway.http.state import fresh, gateway_of
from tidegate_gateway.submission import bounds
from tidegate_gateway.submission.problems import Problems
from tidegate_gateway.submission.resources import AMOUNT_HINTS
from tidegate_gateway.submission.shape import MISSING, Field, integer, optional, record, text
from tidegate_gateway.view import render, usage

log = structlog.get_logger()

WEIGHT_MAX = 1_000_000
_AMOUNT_MAX = 2**53
_AMOUNTS = {
    "cpu_millis": Field(integer(0, _AMOUNT_MAX, "thousandths of a CPU", example="2000 for 2 CPUs")),
    "memory_mib": Field(integer(0, _AMOUNT_MAX, "MiB", example="2048 for 2 GiB")),
    "gpus": Field(integer(0, _AMOUNT_MAX, "GPUs")),
}


def _amounts(value: Any, path: str, problems: Problems) -> Any:
    read = record(value, path, problems, _AMOUNTS, AMOUNT_HINTS)
    return MISSING if read is None or set(read) != set(value) else Resources(**read)


_SETTINGS = {
    "weight": Field(integer(1, WEIGHT_MAX, "weight")),
    "guaranteed": Field(optional(_amounts)),
    "ceiling": Field(optional(_amounts)),
}
_CREATE = {
    "tenant": Field(text(63, pattern=bounds.TENANT, accepted="1 to 63 of A-Z a-z 0-9 _ -"), required=True),
    **_SETTINGS,
}


async def listing(request: Request) -> Response:
    """GET /v1/queues: every tenant that has a queue with settings, or jobs that have not ended."""
    Parameters(request).done()
    gateway = gateway_of(request)
    await fresh(gateway)
    found = usage.with_queues(gateway.fold.view)
    return json_response({"queues": [render.queue(queue, used) for queue, used in found]})


async def create(request: Request) -> Response:
    """POST /v1/queues."""
    asked, given = await read_asked(request, _CREATE)
    gateway, tenant = gateway_of(request), given.pop("tenant")
    permit_operator(gateway, asked.actor)
    await fresh(gateway)
    written = await gateway.desk.record(lambda view: acts.create(view, tenant, given, asked))
    return _answer(request, tenant, "created", written)


async def change(request: Request) -> Response:
    """POST /v1/queues/{tenant}: changes what is given."""
    asked, given = await read_asked(request, _SETTINGS)
    return await _change(request, given, asked, "set")


async def stop(request: Request) -> Response:
    """POST /v1/queues/{tenant}/stop: nothing of it is placed from now on."""
    asked, _ = await read_asked(request, needs_reason=True)
    return await _change(request, {"stopped": True}, asked, "stopped")


async def start(request: Request) -> Response:
    """POST /v1/queues/{tenant}/start."""
    asked, _ = await read_asked(request)
    return await _change(request, {"stopped": False}, asked, "started")


async def _change(request: Request, given: dict[str, Any], asked: Asked, act: str) -> Response:
    gateway, tenant = gateway_of(request), request.path_params["tenant"]
    permit_operator(gateway, asked.actor)
    await fresh(gateway)
    written = await gateway.desk.record(lambda view: acts.change(view, tenant, given, asked))
    return _answer(request, tenant, act, written)


def _answer(request: Request, tenant: str, act: str, written: bool) -> Response:
    view = gateway_of(request).fold.view
    log.info("act_taken", act=f"queue_{act}", tenant=tenant, written=written)
    document = render.queue(acts.known_queue(view, tenant), usage.of_tenant(view, tenant))
    return json_response({**document, "changed": written}, 202 if written else 200)
