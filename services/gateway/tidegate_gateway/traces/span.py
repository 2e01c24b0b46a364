"""A finished span, as it is stored, served and exported; ids and times come from events and from nothing else.

Ids: a job's trace is `trace.trace_id(job)`; a span is `trace.span_id("<event id>|<role>[|<rank>]")`, of the event that
began it. The root alone is `trace.span_id(job)`, because that is the parent in every `traceparent` of the job.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from tidegate_events import trace

Value = str | int | float | bool | tuple[str, ...]
Attributes = dict[str, Value]
Kind = Literal["internal", "server"]
Status = Literal["unset", "ok", "error"]
Fault = Literal["infrastructure", "job"]

GATEWAY, SCHEDULER, NODE = "tidegate-gateway", "tidegate-scheduler", "tidegate-node"
CHECKPOINT, METRICS = "tidegate-checkpoint", "tidegate-metrics"

TEXT_CHARS_MAX = 1000
"""The longest text in a span: details may hold the tail of a log."""
INT64_MAX = 2**63 - 1
"""What OTLP's integers hold; a larger one is written as text."""
ITEMS_MAX = 64
"""The most texts of one attribute, and the most values of a job's result."""
TIME_NS_MAX = 2**62
"""The year 2116. A writer may claim any time; one odd event of one job must not stop the traces of all."""


class Link(msgspec.Struct, frozen=True):
    """Another span that this one came from."""

    trace_id: str
    span_id: str


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """One span. `seq` and `ordinal` are its place in the order of emission; `job` is empty for a scheduling pass."""

    seq: int
    ordinal: int
    trace_id: str
    span_id: str
    parent_id: str
    name: str
    service: str
    instance: str
    kind: Kind
    start_ns: int
    end_ns: int
    status: Status
    message: str
    attributes: Attributes
    links: tuple[Link, ...]
    tenant: str
    job: str


def root_id(job: str) -> str:
    """Return the id of the job's root span, which is the parent in its `traceparent`."""
    return trace.span_id(job)


def derived_id(event_id: str, role: str, rank: int | None = None) -> str:
    """Return the id of the span that an event began in this role."""
    return trace.span_id(f"{event_id}|{role}" if rank is None else f"{event_id}|{role}|{rank}")


def pass_link(event_id: str) -> Link:
    """Return the link to a scheduling pass, which has a trace of its own: no trace grows with the scheduler's life."""
    return Link(trace.trace_id(f"pass|{event_id}"), derived_id(event_id, "pass"))


def bounded_ns(at_ns: int) -> int:
    """Return a time as every store takes it."""
    return max(0, min(TIME_NS_MAX, at_ns))


def clean(text: str) -> str:
    """Return a text as every store takes it: bounded, and without the NUL that PostgreSQL refuses."""
    return text[:TEXT_CHARS_MAX].replace("\x00", "\ufffd")


def cleaned(attributes: Attributes) -> Attributes:
    """Return attributes as every store takes them; what is empty says nothing and is left out."""
    return {clean(name): _clean_value(value) for name, value in attributes.items() if value not in ("", ())}


def _clean_value(value: Value) -> Value:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, tuple):
        return tuple(clean(item) for item in value[:ITEMS_MAX])
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > INT64_MAX:
        return clean(str(value))
    return value
