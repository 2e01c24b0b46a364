"""Values as PostgreSQL's columns take them. The documents keep the truth; columns are for people who ask by SQL.

A journal may hold what a column cannot (a NUL, an integer beyond 64 bits, a time of the year 20000): it is bounded
here, because one odd value of one job must not stop the read models of all.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROS_MAX = 253_402_300_799_000_000  # the end of the year 9999, where datetime ends
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


def text(value: str) -> str:
    """Return a text without NUL, which PostgreSQL refuses."""
    return value.replace("\x00", "\ufffd") if "\x00" in value else value


def small(value: int) -> int:
    """Return a number in the bounds of `integer`."""
    return max(-INT32_MAX, min(INT32_MAX, value))


def big(value: int) -> int:
    """Return a number in the bounds of `bigint`."""
    return max(-INT64_MAX, min(INT64_MAX, value))


def big_or_none(value: int | None) -> int | None:
    """Return a number in the bounds of `bigint`, or nothing."""
    return None if value is None else big(value)


def moment(ns: int | None) -> datetime | None:
    """Return Unix nanoseconds as a time; it keeps microseconds."""
    if ns is None:
        return None
    return _EPOCH + timedelta(microseconds=max(0, min(_MICROS_MAX, ns // 1000)))
