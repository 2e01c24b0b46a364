"""Trace context of a job: ids derived from the job's id, so that every service names the same trace without asking.

Format: W3C Trace Context, https://www.w3.org/TR/trace-context/ (version 00, sampled).
"""

from __future__ import annotations

import hashlib


def trace_id(job: str) -> str:
    """Return the job's trace id: 32 hexadecimal digits, derived from its id."""
    return hashlib.sha256(f"tidegate-trace|{job}".encode()).hexdigest()[:32]


def span_id(key: str) -> str:
    """Return a span id: 16 hexadecimal digits, derived from what the span stands for (usually an event id)."""
    return hashlib.sha256(f"tidegate-span|{key}".encode()).hexdigest()[:16]


def traceparent(job: str) -> str:
    """Return the `traceparent` header value whose parent is the job's root span."""
    return f"00-{trace_id(job)}-{span_id(job)}-01"
