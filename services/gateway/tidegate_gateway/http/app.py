"""The ASGI application: its paths, its errors, and one log line for each request, with job and trace ids."""

from __future__ import annotations

import time

import structlog
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidegate_gateway.http import (
    blobs,
    cluster,
    events,
    job_acts,
    jobs,
    maintenance,
    node_acts,
    nodes,
    queue,
    queues,
    submit,
    top,
    traces,
)
from tidegate_gateway.http.errors import HANDLERS
from tidegate_gateway.http.state import Gateway

log = structlog.get_logger()

ROUTES = (
    Route("/healthz", cluster.healthz, methods=["GET"]),
    Route("/readyz", cluster.readyz, methods=["GET"]),
    Route("/v1/jobs", submit.submit, methods=["POST"]),
    Route("/v1/jobs", jobs.listing, methods=["GET"]),
    Route("/v1/jobs/{job_id}", jobs.detail, methods=["GET"]),
    Route("/v1/jobs/{job_id}", submit.cancel, methods=["DELETE"]),
    Route("/v1/jobs/{job_id}/cancel", submit.cancel, methods=["POST"]),
    Route("/v1/jobs/{job_id}/hold", job_acts.hold, methods=["POST"]),
    Route("/v1/jobs/{job_id}/release", job_acts.release, methods=["POST"]),
    Route("/v1/jobs/{job_id}/suspend", job_acts.suspend, methods=["POST"]),
    Route("/v1/jobs/{job_id}/resume", job_acts.resume, methods=["POST"]),
    Route("/v1/jobs/{job_id}/requeue", job_acts.requeue, methods=["POST"]),
    Route("/v1/jobs/{job_id}/priority", job_acts.priority, methods=["POST"]),
    Route("/v1/jobs/{job_id}/limit", job_acts.limit, methods=["POST"]),
    Route("/v1/jobs/{job_id}/timeline", jobs.timeline, methods=["GET"]),
    Route("/v1/jobs/{job_id}/explain", jobs.explain, methods=["GET"]),
    Route("/v1/jobs/{job_id}/logs", nodes.logs, methods=["GET"]),
    Route("/v1/jobs/{job_id}/restore", nodes.restore, methods=["POST"]),
    Route("/v1/jobs/{job_id}/rollback", nodes.rollback, methods=["POST"]),
    Route("/v1/checkpoints", jobs.checkpoints, methods=["GET"]),
    Route("/v1/blobs/{digest}", blobs.put, methods=["PUT"]),
    Route("/v1/blobs/{digest}", blobs.get, methods=["GET"]),
    Route("/v1/nodes", cluster.nodes, methods=["GET"]),
    Route("/v1/nodes/{node}/drain", node_acts.drain, methods=["POST"]),
    Route("/v1/nodes/{node}/resume", node_acts.resume, methods=["POST"]),
    Route("/v1/nodes/{node}/forget", node_acts.forget, methods=["POST"]),
    Route("/v1/maintenance", maintenance.listing, methods=["GET"]),
    Route("/v1/maintenance", maintenance.plan, methods=["POST"]),
    Route("/v1/maintenance/{name}/cancel", maintenance.cancel, methods=["POST"]),
    Route("/v1/queues", queues.listing, methods=["GET"]),
    Route("/v1/queues", queues.create, methods=["POST"]),
    Route("/v1/queues/{tenant}", queues.change, methods=["POST"]),
    Route("/v1/queues/{tenant}/stop", queues.stop, methods=["POST"]),
    Route("/v1/queues/{tenant}/start", queues.start, methods=["POST"]),
    Route("/v1/status", cluster.status, methods=["GET"]),
    Route("/v1/queue", queue.queue, methods=["GET"]),
    Route("/v1/top", top.top, methods=["GET"]),
    Route("/v1/events", events.events, methods=["GET"]),
    Route("/api/v3/traces", traces.traces, methods=["GET"]),
    Route("/api/v3/traces/{trace_id}", traces.trace, methods=["GET"]),
    Route("/api/v3/services", traces.services, methods=["GET"]),
    Route("/api/v3/operations", traces.operations, methods=["GET"]),
)
_QUIET_PATHS = frozenset({"/healthz", "/readyz"})


class RequestLog:
    """Logs method, endpoint, status and duration. Never paths, queries, bodies or headers: they may hold secrets."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and log how it ended."""
        if scope["type"] != "http" or scope["path"] in _QUIET_PATHS:
            await self._app(scope, receive, send)
            return
        status = 0

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        structlog.contextvars.unbind_contextvars("job", "trace_id")
        began = time.monotonic()
        try:
            await self._app(scope, receive, send_and_note)
        finally:
            took_ms = round((time.monotonic() - began) * 1000, 1)
            endpoint = getattr(scope.get("endpoint"), "__name__", "")
            log.info("request", method=scope["method"], endpoint=endpoint, status=status, took_ms=took_ms)


def application(gateway: Gateway) -> Starlette:
    """Return the application of one gateway."""
    app = Starlette(routes=ROUTES, middleware=[Middleware(RequestLog)], exception_handlers=HANDLERS)
    app.router.redirect_slashes = False
    app.state.gateway = gateway
    return app
