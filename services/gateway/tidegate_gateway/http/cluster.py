"""Endpoints about the whole: health, nodes and status."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from tidegate_events import subjects

from tidegate_gateway.asks.base import EXPLAIN_SECONDS_MAX, BadAnswerError, NobodyAnsweredError
from tidegate_gateway.http.errors import json_response
from tidegate_gateway.http.params import Parameters
from tidegate_gateway.http.state import Gateway, fresh, gateway_of, journal_end
from tidegate_gateway.view import render
from tidegate_gateway.view.census import by_state
from tidegate_gateway.view.model import Node
from tidegate_gateway.view.unavailable import unavailable, windows_of


async def healthz(request: Request) -> Response:
    """GET /healthz: the process answers."""
    return json_response({"alive": True})


async def readyz(request: Request) -> Response:
    """GET /readyz: reads are current and the bus is there."""
    gateway = gateway_of(request)
    answer = {
        "ready": gateway.ready,
        "fold_caught_up": gateway.fold.caught_up,
        "bus_connected": gateway.asker.connected,
        "folded": gateway.fold.view.seq,
        "journal_end": gateway.fold.target,
    }
    return json_response(answer, 200 if gateway.ready else 503)


async def nodes(request: Request) -> Response:
    """GET /v1/nodes."""
    Parameters(request).done()
    gateway = gateway_of(request)
    await fresh(gateway)
    return json_response({"nodes": node_documents(gateway)})


def node_documents(gateway: Gateway) -> list[dict[str, Any]]:
    """Return every node, by name, with why it takes no jobs where it takes none."""
    return [node_document(gateway, node) for _, node in sorted(gateway.fold.view.nodes.items())]


def node_document(gateway: Gateway, node: Node) -> dict[str, Any]:
    """Return a node, with the maintenance that it shall have and why it takes no jobs where it takes none."""
    view, now_ns = gateway.fold.view, gateway.clock.now_ns()
    windows = windows_of(node.name, view.maintenance.values(), now_ns)
    return render.node(node, unavailable(node, view.jobs, windows, now_ns), windows)


async def status(request: Request) -> Response:
    """GET /v1/status: answers also while the journal is away, and then says so."""
    Parameters(request).done()
    gateway = gateway_of(request)
    view = gateway.fold.view
    end = await journal_end(gateway)
    leader = view.leader
    answer = {
        "instance": gateway.settings.instance,
        "now_ns": gateway.clock.now_ns(),
        "ready": gateway.ready,
        "journal": {"end": end, "folded": view.seq, "lag": None if end is None else max(0, end - view.seq)},
        "leader": msgspec.structs.asdict(leader) if leader else None,
        "leads_now": await _leads_now(gateway),
        "policy": view.policy,
        "services": render.services(view),
        "jobs": by_state(view.census.states),
        "nodes": Counter(node.state for node in view.nodes.values()),
        "events": view.events,
        "passes": view.passes,
        "decisions": view.decisions,
        "void_events": view.void_events,
        "forgotten_jobs": len(view.forgotten),
    }
    return json_response(answer)


async def _leads_now(gateway: Gateway) -> bool:
    """Say whether a scheduler that leads answers: the journal tells only who was elected last."""
    try:
        await gateway.asker.ask(subjects.ask_scheduler("leader"), {}, EXPLAIN_SECONDS_MAX)
    except (NobodyAnsweredError, BadAnswerError):
        return False
    return True
