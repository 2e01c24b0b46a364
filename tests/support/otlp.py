"""A real OTLP/HTTP receiver for tests, and one comparable form for spans of the wire and of Jaeger's JSON."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

BODY_BYTES_MAX = 64 * 1024 * 1024
Comparable = dict[str, Any]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print what went wrong, other than a client that went away: tests kill those."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class OtlpReceiver:
    """Takes spans on a port of this machine, in a thread of its own. Each request is decoded before it is answered.

    `answer` decides the HTTP status of each request by what came; by default everything is taken.
    """

    def __init__(self, answer: Callable[[list[Comparable]], int] = lambda _spans: 200) -> None:
        self.answer = answer
        self.requests: list[list[Comparable]] = []
        """The spans of each request that was taken, in order."""
        self.headers: list[dict[str, str]] = []
        self._changed = threading.Condition()
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    @property
    def url(self) -> str:
        """Return what OTEL_EXPORTER_OTLP_ENDPOINT is to say."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def spans(self) -> list[Comparable]:
        """Return all spans that were taken, in order, those that came twice included."""
        with self._changed:
            return [span for request in self.requests for span in request]

    def of_trace(self, trace_id: str) -> dict[str, Comparable]:
        """Return the spans of a trace by their ids."""
        return {span["span_id"]: span for span in self.spans if span["trace_id"] == trace_id}

    def wait_for(self, enough: Callable[[list[Comparable]], bool], timeout_seconds: float) -> None:
        """Return when the spans that were taken are enough. Raises TimeoutError."""
        with self._changed:
            found = self._changed.wait_for(
                lambda: enough([span for request in self.requests for span in request]), timeout_seconds
            )
        if not found:
            names = sorted({span["name"] for span in self.spans})
            raise TimeoutError(f"after {timeout_seconds:g} s there are only {len(self.spans)} spans: {names}")

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _take(self, body: bytes, headers: dict[str, str]) -> int:
        spans = from_wire(ExportTraceServiceRequest.FromString(body))
        status = self.answer(spans)
        with self._changed:
            self.headers.append(headers)
            if status == 200:
                self.requests.append(spans)
            self._changed.notify_all()
        return status

    def _handler(receiver: OtlpReceiver) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers.get("content-length", "0"))
                body = self.rfile.read(min(length, BODY_BYTES_MAX))
                right = self.path == "/v1/traces" and self.headers.get("content-type") == "application/x-protobuf"
                status = receiver._take(body, dict(self.headers.items())) if right else 404
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing: requests are there to be looked at."""

        return Handler


def from_wire(request: ExportTraceServiceRequest) -> list[Comparable]:
    """Return the spans of an OTLP message in comparable form."""
    return [
        _from_wire_span(span, _from_key_values(resource.resource.attributes))
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def from_json(document: dict[str, Any]) -> list[Comparable]:
    """Return the spans of what GET /api/v3/traces answers in comparable form."""
    return [
        _from_json_span(span, _from_json_attributes(resource["resource"].get("attributes", [])))
        for resource in document["result"]["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def _from_wire_span(span: Span, resource: Comparable) -> Comparable:
    return {
        "trace_id": span.trace_id.hex(),
        "span_id": span.span_id.hex(),
        "parent_id": span.parent_span_id.hex(),
        "name": span.name,
        "kind": int(span.kind),
        "start_ns": span.start_time_unix_nano,
        "end_ns": span.end_time_unix_nano,
        "status": int(span.status.code),
        "message": span.status.message,
        "attributes": _from_key_values(span.attributes),
        "links": [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        "resource": resource,
    }


def _from_json_span(span: dict[str, Any], resource: Comparable) -> Comparable:
    return {
        "trace_id": span["traceId"],
        "span_id": span["spanId"],
        "parent_id": span.get("parentSpanId", ""),
        "name": span["name"],
        "kind": span["kind"],
        "start_ns": int(span["startTimeUnixNano"]),
        "end_ns": int(span["endTimeUnixNano"]),
        "status": span["status"].get("code", 0),
        "message": span["status"].get("message", ""),
        "attributes": _from_json_attributes(span["attributes"]),
        "links": [(link["traceId"], link["spanId"]) for link in span.get("links", [])],
        "resource": resource,
    }


def _from_key_values(pairs: Iterable[KeyValue]) -> Comparable:
    return {pair.key: _from_any_value(pair.value) for pair in pairs}


def _from_any_value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_from_any_value(item) for item in value.array_value.values]
    return getattr(value, str(kind))


def _from_json_attributes(pairs: list[dict[str, Any]]) -> Comparable:
    return {pair["key"]: _from_json_value(pair["value"]) for pair in pairs}


def _from_json_value(value: dict[str, Any]) -> Any:
    ((kind, content),) = value.items()
    if kind == "arrayValue":
        return [_from_json_value(item) for item in content["values"]]
    return int(content) if kind == "intValue" else content
