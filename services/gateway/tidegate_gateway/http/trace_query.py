"""Reads the parameters of Jaeger's query API v3; what cannot be read is refused by name, as Jaeger does."""

from __future__ import annotations

import json
import re
from datetime import datetime

from starlette.requests import Request

from tidegate_gateway.traces.store import Query

TRACES_DEFAULT, TRACES_MAX = 100, 1_000
ATTRIBUTES_MAX = 16
TEXT_CHARS_MAX = 1_000
EVER_NS = 2**63 - 1
_NS_PER_SECOND = 1_000_000_000
_TRACE_ID = re.compile(r"[0-9a-fA-F]{1,32}")
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)", re.ASCII)
_DURATION = re.compile(r"(?:\d{1,9}(?:\.\d{1,9})?(?:ns|us|µs|ms|s|m|h))+", re.ASCII)
_DURATION_PART = re.compile(r"(\d+)(?:\.(\d+))?(ns|us|µs|ms|s|m|h)", re.ASCII)
_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": _NS_PER_SECOND,
    "m": 60 * _NS_PER_SECOND,
    "h": 3600 * _NS_PER_SECOND,
}


class BadParameterError(Exception):
    """A parameter cannot be read; says which one and why."""


class Given:
    """The query of one request. A parameter has a canonical name and may have older ones; the first given wins."""

    def __init__(self, request: Request) -> None:
        self._values = request.query_params

    def text(self, *names: str) -> str:
        """Return a parameter, empty where it is not given."""
        _, value = self._named(*names)
        return value

    def time_ns(self, default_ns: int, *names: str) -> int:
        """Return a time of RFC 3339 as Unix time in nanoseconds."""
        name, value = self._named(*names)
        return _time_ns(name, value) if value else default_ns

    def duration_ns(self, *names: str) -> int | None:
        """Return a duration like 1.5s or 2m30s in nanoseconds, None where it is not given."""
        name, value = self._named(*names)
        return _duration_ns(name, value) if value else None

    def period(self, began: str, began_alias: str, ended: str, ended_alias: str) -> tuple[int, int]:
        """Return two times; without them all times are meant."""
        return self.time_ns(0, began, began_alias), self.time_ns(EVER_NS, ended, ended_alias)

    def count(self, default: int, high: int, *names: str) -> int:
        """Return a whole number from 1 to `high`."""
        name, value = self._named(*names)
        if not value:
            return default
        if not (value.isascii() and value.isdigit() and len(value) <= 10 and 1 <= int(value) <= high):
            raise BadParameterError(f"malformed parameter {name}: a whole number from 1 to {high} is accepted")
        return int(value)

    def _named(self, *names: str) -> tuple[str, str]:
        for name in names:
            if value := self._values.get(name, ""):
                if len(value) > TEXT_CHARS_MAX or "\x00" in value:
                    raise BadParameterError(f"malformed parameter {name}: up to {TEXT_CHARS_MAX} characters are taken")
                return name, value
        return names[0], ""


def read_trace_id(text: str) -> str:
    """Return a trace id in the form that is stored: 32 lower-case hexadecimal digits. Raises BadParameterError."""
    if not _TRACE_ID.fullmatch(text):
        raise BadParameterError("malformed parameter trace_id: 1 to 32 hexadecimal digits are accepted")
    return text.lower().zfill(32)


def read_query(given: Given) -> Query:
    """Return what GET /api/v3/traces asks for. Raises BadParameterError."""
    times = {
        "query.startTimeMin": given.text("query.startTimeMin", "query.start_time_min"),
        "query.startTimeMax": given.text("query.startTimeMax", "query.start_time_max"),
    }
    if missing := [name for name, value in times.items() if not value]:
        raise BadParameterError(f"{' and '.join(missing)} required: times of RFC 3339 are accepted")
    return Query(
        start_min_ns=given.time_ns(0, "query.startTimeMin", "query.start_time_min"),
        start_max_ns=given.time_ns(0, "query.startTimeMax", "query.start_time_max"),
        service=given.text("query.serviceName", "query.service_name"),
        operation=given.text("query.operationName", "query.operation_name"),
        duration_min_ns=given.duration_ns("query.durationMin", "query.duration_min") or 0,
        duration_max_ns=given.duration_ns("query.durationMax", "query.duration_max"),
        attributes=_attributes(given.text("query.attributes")),
        traces_max=given.count(
            TRACES_DEFAULT, TRACES_MAX, "query.searchDepth", "query.search_depth", "query.num_traces"
        ),
    )


def _attributes(text: str) -> dict[str, str]:
    """Return the attributes that a span shall have: a JSON object of texts."""
    if not text:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise BadParameterError("malformed parameter query.attributes: a JSON object of texts is accepted")
    if len(found) > ATTRIBUTES_MAX:
        raise BadParameterError(f"malformed parameter query.attributes: up to {ATTRIBUTES_MAX} are accepted")
    if any("\x00" in part or not part.isprintable() for pair in found.items() for part in pair):
        raise BadParameterError("malformed parameter query.attributes: printable characters are accepted")
    return found


def _time_ns(name: str, text: str) -> int:
    # A "+" of a zone that was not escaped arrives as a space.
    match = _TIME.fullmatch(text.replace(" ", "+").upper())
    try:
        whole = datetime.fromisoformat(match[1] + match[3].replace("Z", "+00:00")) if match else None
    except ValueError:
        whole = None
    if match is None or whole is None:
        raise BadParameterError(f"malformed parameter {name}: a time like 2026-01-31T12:00:00Z is accepted")
    seconds = int(whole.timestamp())
    return max(0, min(EVER_NS, seconds * _NS_PER_SECOND + int((match[2] or "").ljust(9, "0"))))


def _duration_ns(name: str, text: str) -> int:
    if not _DURATION.fullmatch(text):
        raise BadParameterError(f"malformed parameter {name}: a duration like 300ms, 1.5s or 2h45m is accepted")
    total = 0
    for whole, fraction, unit in _DURATION_PART.findall(text):
        size = _UNITS_NS[unit]
        total += int(whole) * size + (int(fraction) * size // 10 ** len(fraction) if fraction else 0)
    return min(total, EVER_NS)
