"""A job's place in the line, in the words of a table: position, start, reason."""

from __future__ import annotations

from typing import Any

from tidegate.cli import text
from tidegate.cli.text import NS_PER_SECOND

UNKNOWN = "unknown"
_BASES = {
    "now": "",
    "backoff": "after its pause",
    "locality": "when it may be spread wider",
    "maintenance": "after the maintenance of its nodes",
    "deadline": "at the latest",
    "expected": "if jobs take as long as they expect",
    "limit": "by time limits",
}


def start(waiting: dict[str, Any], now_ns: int) -> str:
    """Return the earliest start that is known, short: `now`, `in 35s`, `unknown`."""
    at_ns = waiting.get("starts_at_ns")
    if at_ns is None:
        return UNKNOWN
    basis = waiting.get("starts_basis") or ""
    if basis == "now":
        return "now"
    return f"{_SIGNS.get(basis, '')}in {text.span((at_ns - now_ns) / NS_PER_SECOND)}"


_SIGNS = {"deadline": "≤", "expected": "~", "limit": "~"}
LEGEND = (
    "START: ≤ room is being made until then; ~ if the jobs in front end when they expect to, or at their time limit; "
    "unknown: they declared neither."
)


def start_in_words(waiting: dict[str, Any], now_ns: int) -> str:
    """Return the earliest start as part of a sentence, with what it rests on."""
    at_ns = waiting.get("starts_at_ns")
    if at_ns is None:
        return "earliest start unknown"
    basis = waiting.get("starts_basis") or ""
    when = "now" if basis == "now" else f"in {text.span((at_ns - now_ns) / NS_PER_SECOND)}"
    why = _BASES.get(basis, "")
    return f"may start {when}" + (f", {why}" if why else "")
