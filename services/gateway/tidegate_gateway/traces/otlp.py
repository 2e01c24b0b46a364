"""Spans as OTLP writes them: JSON (stored, and answered as Jaeger does) and protobuf (exported).

OTLP/JSON differs from plain protobuf JSON: trace and span ids are hexadecimal, enums are numbers, 64-bit integers are
strings. https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status as WireStatus

from tidegate_gateway.traces.span import Attributes, Kind, Link, Span, Status, Value

Document = dict[str, Any]

SCOPE = "tidegate"
KINDS: dict[Kind, int] = {"internal": 1, "server": 2}
STATUSES: dict[Status, int] = {"unset": 0, "ok": 1, "error": 2}
SAMPLED = 0x100 | 0x01
"""Flags of a span: sampled, and it is known whether its parent is remote (it is not)."""


def attributes_document(attributes: Attributes) -> list[Document]:
    """Return attributes as OTLP/JSON has them."""
    return [{"key": name, "value": _value_document(value)} for name, value in attributes.items()]


def attributes_of(document: list[Document]) -> Attributes:
    """Return what `attributes_document` was given."""
    return {each["key"]: _value_of(each["value"]) for each in document}


def links_document(links: Iterable[Link]) -> list[Document]:
    """Return links as OTLP/JSON has them."""
    return [{"traceId": link.trace_id, "spanId": link.span_id} for link in links]


def traces_document(spans: Iterable[Span]) -> Document:
    """Return spans as OTLP's TracesData in JSON, one resource for each service and instance."""
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": attributes_document(_resource(service, instance))},
                "scopeSpans": [{"scope": {"name": SCOPE}, "spans": [_span_document(span) for span in found]}],
            }
            for (service, instance), found in _by_resource(spans).items()
        ]
    }


def export_request(spans: Iterable[Span]) -> ExportTraceServiceRequest:
    """Return the protobuf message that carries spans to an OTLP endpoint."""
    request = ExportTraceServiceRequest()
    for (service, instance), found in _by_resource(spans).items():
        resource: ResourceSpans = request.resource_spans.add()
        resource.resource.attributes.extend(_key_values(_resource(service, instance)))
        scope = resource.scope_spans.add()
        scope.scope.name = SCOPE
        scope.spans.extend(_wire_span(span) for span in found)
    return request


def _by_resource(spans: Iterable[Span]) -> dict[tuple[str, str], list[Span]]:
    grouped: dict[tuple[str, str], list[Span]] = {}
    for span in spans:
        grouped.setdefault((span.service, span.instance), []).append(span)
    return grouped


def _resource(service: str, instance: str) -> Attributes:
    resource: Attributes = {"service.name": service, "service.namespace": "tidegate"}
    return {**resource, "service.instance.id": instance} if instance else resource


def _span_document(span: Span) -> Document:
    document: Document = {"traceId": span.trace_id, "spanId": span.span_id}
    if span.parent_id:
        document["parentSpanId"] = span.parent_id
    document |= {
        "flags": SAMPLED,
        "name": span.name,
        "kind": KINDS[span.kind],
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": attributes_document(span.attributes),
    }
    if span.links:
        document["links"] = links_document(span.links)
    document["status"] = {}
    if span.message:
        document["status"]["message"] = span.message
    if span.status != "unset":
        document["status"]["code"] = STATUSES[span.status]
    return document


def _value_document(value: Value) -> Document:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, tuple):
        return {"arrayValue": {"values": [{"stringValue": item} for item in value]}}
    return {"stringValue": value}


def _value_of(document: Document) -> Value:
    ((kind, value),) = document.items()
    match kind:
        case "boolValue":
            return bool(value)
        case "intValue":
            return int(value)
        case "doubleValue":
            return float(value)
        case "arrayValue":
            return tuple(str(item["stringValue"]) for item in value["values"])
    return str(value)


def _wire_span(span: Span) -> WireSpan:
    return WireSpan(
        trace_id=bytes.fromhex(span.trace_id),
        span_id=bytes.fromhex(span.span_id),
        parent_span_id=bytes.fromhex(span.parent_id),
        flags=SAMPLED,
        name=span.name,
        kind=KINDS[span.kind],  # type: ignore[arg-type]
        start_time_unix_nano=span.start_ns,
        end_time_unix_nano=span.end_ns,
        attributes=_key_values(span.attributes),
        links=[
            WireSpan.Link(trace_id=bytes.fromhex(link.trace_id), span_id=bytes.fromhex(link.span_id))
            for link in span.links
        ],
        status=WireStatus(code=STATUSES[span.status], message=span.message),  # type: ignore[arg-type]
    )


def _key_values(attributes: Attributes) -> list[KeyValue]:
    return [KeyValue(key=name, value=_any_value(value)) for name, value in attributes.items()]


def _any_value(value: Value) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, tuple):
        return AnyValue(array_value=ArrayValue(values=[AnyValue(string_value=item) for item in value]))
    return AnyValue(string_value=value)
