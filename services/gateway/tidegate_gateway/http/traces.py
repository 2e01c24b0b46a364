"""Endpoints that answer about traces as Jaeger's query API v3 does, so that its clients can be pointed here.

Shape and parameters follow Jaeger 2's HTTP gateway (`cmd/jaeger/internal/extension/jaegerquery/internal/apiv3`:
http_gateway.go, query_parser.go and its snapshots): OTLP's TracesData below `result`, ids in hexadecimal, parameters in
camelCase with their older snake_case aliases, times by RFC 3339, durations as Go writes them, errors below `error`.
"""

from __future__ import annotations

from typing import Any

import structlog
from starlette.requests import Request
from starlette.responses import Response

from tidegate_gateway.database.connection import Database, DatabaseAwayError
from tidegate_gateway.http.errors import RETRY_AFTER_SECONDS, json_response
from tidegate_gateway.http.state import gateway_of
from tidegate_gateway.http.trace_query import BadParameterError, Given, read_query, read_trace_id
from tidegate_gateway.traces import otlp, store
from tidegate_gateway.traces.span import Span

SPANS_PER_ANSWER_MAX = 50_000
"""A search stops at so many spans; traces that were active longer ago are then left out."""
OPERATIONS_MAX = 1_000

log = structlog.get_logger()


async def trace(request: Request) -> Response:
    """GET /api/v3/traces/{trace_id}."""
    try:
        trace_id = read_trace_id(request.path_params["trace_id"])
        within = Given(request).period("startTime", "start_time", "endTime", "end_time")
    except BadParameterError as error:
        return _refused(400, "bad_parameter", str(error), "what Jaeger's query API v3 takes")
    structlog.contextvars.bind_contextvars(trace_id=trace_id)
    if (database := gateway_of(request).database) is None:
        return _no_database()
    try:
        async with database.transaction(read_only=True) as connection:
            spans = await store.read_trace(connection, trace_id)
    except DatabaseAwayError as error:
        return _away(error)
    began, ended = within
    if not any(began <= span.start_ns <= ended for span in spans):
        return _not_found()
    return _answer(spans)


async def traces(request: Request) -> Response:
    """GET /api/v3/traces: the traces with a span that meets all that is asked for, the newest first."""
    try:
        query = read_query(Given(request))
    except BadParameterError as error:
        return _refused(400, "bad_parameter", str(error), "what Jaeger's query API v3 takes")
    if (database := gateway_of(request).database) is None:
        return _no_database()
    try:
        spans = await _search(database, query)
    except DatabaseAwayError as error:
        return _away(error)
    return _answer(spans) if spans else _not_found()


async def _search(database: Database, query: store.Query) -> list[Span]:
    async with database.transaction(read_only=True) as connection:
        spans: list[Span] = []
        for trace_id in await store.find_traces(connection, query):
            spans += await store.read_trace(connection, trace_id)
            if len(spans) >= SPANS_PER_ANSWER_MAX:
                log.warning("trace_search_cut", spans=len(spans), traces_max=query.traces_max)
                break
    return spans


async def services(request: Request) -> Response:
    """GET /api/v3/services."""
    if (database := gateway_of(request).database) is None:
        return _no_database()
    try:
        async with database.connection() as connection:
            found = await store.read_services(connection)
    except DatabaseAwayError as error:
        return _away(error)
    return json_response({"services": found})


async def operations(request: Request) -> Response:
    """GET /api/v3/operations?service=: the names of a service's spans."""
    given = Given(request)
    service, kind = given.text("service"), given.text("spanKind", "span_kind")
    if not service:
        return _refused(400, "bad_parameter", "service is required", "a name of GET /api/v3/services")
    if (database := gateway_of(request).database) is None:
        return _no_database()
    try:
        async with database.connection() as connection:
            found = await store.read_operations(connection, service, kind, limit=OPERATIONS_MAX)
    except DatabaseAwayError as error:
        return _away(error)
    return json_response({"operations": [{"name": name, "spanKind": span_kind} for name, span_kind in found]})


def _answer(spans: list[Span]) -> Response:
    return json_response({"result": otlp.traces_document(spans)})


def _not_found() -> Response:
    return _refused(404, "no_trace", "No traces found", "the trace_id of a job; see GET /v1/jobs")


def _no_database() -> Response:
    remedy = "a gateway with TIDEGATE_DATABASE_URL and a projector that writes there"
    return _refused(501, "no_database", "this gateway keeps no traces: it was started without a database", remedy)


def _away(error: DatabaseAwayError) -> Response:
    return _refused(503, "database_away", str(error), "the same request again after the seconds in Retry-After")


def _refused(status: int, code: str, problem: str, accepted: str) -> Response:
    """Return an error in Jaeger's form and, beside it, in the one of every other endpoint here."""
    body: dict[str, Any] = {"error": {"httpCode": status, "message": problem}}
    headers = {"retry-after": str(RETRY_AFTER_SECONDS)} if status == 503 else None
    return json_response({**body, "code": code, "problem": problem, "accepted": accepted}, status, headers)
