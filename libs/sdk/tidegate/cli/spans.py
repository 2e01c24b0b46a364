"""A job's spans as the gateway answers them (OTLP in JSON, below Jaeger's `result`), flat and easy to draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SERVICE = "service.name"
PREFIX = "tidegate."
STATUS_ERROR = 2
_LIFE = ("submit", "queue", "suspend", "attempt", "start", "resume", "image", "sandbox", "restore", "cancel")


@dataclass(frozen=True)
class Span:
    """One span; attributes of Tidegate's own are without their prefix."""

    id: str
    parent_id: str
    name: str
    service: str
    start_ns: int
    end_ns: int
    failed: bool
    message: str
    attributes: dict[str, Any]
    links: tuple[str, ...]

    @property
    def duration_ns(self) -> int:
        """Return how long it took."""
        return self.end_ns - self.start_ns


def read(document: dict[str, Any]) -> list[Span]:
    """Return the spans of `GET /api/v3/traces/{trace_id}`, those that began first first."""
    spans = [
        _span(span, str(_attributes(resource["resource"].get("attributes", [])).get(SERVICE, "")))
        for resource in document["result"]["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
    return sorted(spans, key=lambda span: (span.start_ns, _place(span), -span.end_ns, span.id))


def _place(span: Span) -> int:
    """Return where a span stands among those that begin together: in the order of a job's life."""
    return _LIFE.index(span.name) if span.name in _LIFE else len(_LIFE) + (span.name == "end")


def _span(span: dict[str, Any], service: str) -> Span:
    status = span.get("status", {})
    found = _attributes(span.get("attributes", []))
    return Span(
        id=span["spanId"],
        parent_id=span.get("parentSpanId", ""),
        name=span["name"],
        service=service,
        start_ns=int(span["startTimeUnixNano"]),
        end_ns=int(span["endTimeUnixNano"]),
        failed=status.get("code") == STATUS_ERROR,
        message=status.get("message", ""),
        attributes={name.removeprefix(PREFIX): value for name, value in found.items()},
        links=tuple(link["traceId"] for link in span.get("links", [])),
    )


def _attributes(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    return {pair["key"]: _value(pair["value"]) for pair in pairs}


def _value(value: dict[str, Any]) -> Any:
    ((kind, content),) = value.items()
    if kind == "intValue":
        return int(content)
    if kind == "arrayValue":
        return [_value(item) for item in content.get("values", [])]
    return content
