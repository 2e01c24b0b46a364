"""Endpoints by which an operator empties a node, gives it back, or has a lost one forgotten."""

from __future__ import annotations

from typing import Any

import structlog
from starlette.requests import Request
from starlette.responses import Response

from tidegate_gateway.acts import nodes as acts
from tidegate_gateway.http.asking import permit_operator, read_asked
from tidegate_gateway.http.cluster import node_document
from tidegate_gateway.http.errors import json_response
from tidegate_gateway.http.state import fresh, gateway_of
from tidegate_gateway.submission.shape import Field, integer

log = structlog.get_logger()

_DEADLINE_NS_MAX = 2**62
_DRAIN: dict[str, Field] = {
    "deadline_ns": Field(integer(1, _DEADLINE_NS_MAX, "nanoseconds since 1970", example="now + 30 min"), required=True)
}


async def drain(request: Request) -> Response:
    """POST /v1/nodes/{node}/drain."""
    asked, given = await read_asked(request, _DRAIN, needs_reason=True)
    gateway, node = gateway_of(request), request.path_params["node"]
    permit_operator(gateway, asked.actor)
    await fresh(gateway)
    now_ns = gateway.clock.now_ns()
    written = await gateway.desk.record(lambda view: acts.drain(view, node, asked, given["deadline_ns"], now_ns))
    return _answer(request, "drain", written)


async def resume(request: Request) -> Response:
    """POST /v1/nodes/{node}/resume."""
    asked, _ = await read_asked(request)
    gateway, node = gateway_of(request), request.path_params["node"]
    permit_operator(gateway, asked.actor)
    await fresh(gateway)
    written = await gateway.desk.record(lambda view: acts.resume(view, node, asked))
    return _answer(request, "resume", written)


async def forget(request: Request) -> Response:
    """POST /v1/nodes/{node}/forget."""
    asked, _ = await read_asked(request)
    gateway, node = gateway_of(request), request.path_params["node"]
    permit_operator(gateway, asked.actor)
    await fresh(gateway)
    await gateway.desk.record(lambda view: acts.forget(view, node, asked))
    log.info("act_taken", act="node_forget", node=node, written=True)
    return json_response({"node": node, "forgotten": True, "changed": True}, 202)


def _answer(request: Request, act: str, written: bool) -> Response:
    gateway, name = gateway_of(request), request.path_params["node"]
    log.info("act_taken", act=f"node_{act}", node=name, written=written)
    document: dict[str, Any] = node_document(gateway, gateway.fold.view.nodes[name])
    return json_response({**document, "changed": written}, 202 if written else 200)
