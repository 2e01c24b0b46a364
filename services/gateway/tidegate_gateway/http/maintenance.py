"""Endpoints of maintenance windows."""

from __future__ import annotations

import structlog
from starlette.requests import Request
from starlette.responses import Response

from tidegate_gateway.acts import maintenance as acts
from tidegate_gateway.http.asking import permit_operator, read_asked
from tidegate_gateway.http.errors import json_response
from tidegate_gateway.http.params import Parameters
from tidegate_gateway.http.state import fresh, gateway_of
from tidegate_gateway.submission import bounds
from tidegate_gateway.submission.shape import Field, integer, sequence, text
from tidegate_gateway.view import render

log = structlog.get_logger()

NODES_MAX = 2000
_MOMENT = integer(1, 2**62, "nanoseconds since 1970")
_PLAN = {
    "name": Field(text(63, pattern=bounds.NAME, accepted=bounds.NAME_FORM), required=True),
    "nodes": Field(
        sequence(text(64, accepted="the name of a node"), NODES_MAX, count_min=1, of="names of nodes"), required=True
    ),
    "start_ns": Field(_MOMENT, required=True),
    "end_ns": Field(_MOMENT, required=True),
}


async def listing(request: Request) -> Response:
    """GET /v1/maintenance: what lies ahead or goes on, the first to start first; with `all=1` also what is over."""
    gateway = gateway_of(request)
    parameters = Parameters(request, "all")
    everything = parameters.integer("all", 0, 0, 1)
    parameters.done()
    await fresh(gateway)
    now_ns = gateway.clock.now_ns()
    windows = sorted(gateway.fold.view.maintenance.values(), key=lambda window: (window.start_ns, window.name))
    shown = [render.maintenance(window, now_ns) for window in windows if everything or not window.is_over(now_ns)]
    return json_response({"now_ns": now_ns, "maintenance": shown})


async def plan(request: Request) -> Response:
    """POST /v1/maintenance."""
    asked, given = await read_asked(request, _PLAN)
    gateway = gateway_of(request)
    permit_operator(gateway, asked.actor)
    await fresh(gateway)
    nodes = tuple(dict.fromkeys(given["nodes"]))
    window = acts.Window(given["name"], nodes, given["start_ns"], given["end_ns"])
    now_ns = gateway.clock.now_ns()
    written = await gateway.desk.record(lambda view: acts.plan(view, window, asked, now_ns))
    return _answer(request, window.name, "planned", written)


async def cancel(request: Request) -> Response:
    """POST /v1/maintenance/{name}/cancel."""
    asked, _ = await read_asked(request)
    gateway, name = gateway_of(request), request.path_params["name"]
    permit_operator(gateway, asked.actor)
    await fresh(gateway)
    now_ns = gateway.clock.now_ns()
    written = await gateway.desk.record(lambda view: acts.cancel(view, name, asked, now_ns))
    return _answer(request, name, "cancelled", written)


def _answer(request: Request, name: str, act: str, written: bool) -> Response:
    gateway = gateway_of(request)
    log.info("act_taken", act=f"maintenance_{act}", name=name, written=written)
    document = render.maintenance(gateway.fold.view.maintenance[name], gateway.clock.now_ns())
    return json_response({**document, "changed": written}, 202 if written else 200)
