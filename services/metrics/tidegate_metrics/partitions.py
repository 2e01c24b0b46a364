"""The time partitions of the rows: which there must be, and which are past the retention. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta

SCHEMA = "tidegate"
TABLE = "metric_windows"
NS_PER_DAY = 86_400 * 1_000_000_000

_NAME = re.compile(rf"{TABLE}_([0-9]{{8}})\Z")


def day_of(at_ns: int) -> date:
    """Return the day (in UTC) that a time falls on."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=at_ns // NS_PER_DAY)).date()


def name_of(day: date) -> str:
    """Return the name of a day's partition."""
    return f"{TABLE}_{day:%Y%m%d}"


def create(day: date) -> str:
    """Return the statement that makes a day's partition where it is missing."""
    return (
        f"CREATE TABLE IF NOT EXISTS {SCHEMA}.{name_of(day)} PARTITION OF {SCHEMA}.{TABLE} "
        f"FOR VALUES FROM ('{day}T00:00:00Z') TO ('{day + timedelta(days=1)}T00:00:00Z')"
    )


def drop(name: str) -> str:
    """Return the statement that drops a partition with its rows."""
    if not _NAME.match(name):
        raise ValueError(f"{name!r} is no partition of {TABLE}")
    return f"DROP TABLE IF EXISTS {SCHEMA}.{name}"


def expired(names: Iterable[str], now_ns: int, retention_days: int) -> list[str]:
    """Return those of the partitions that hold only days before the retention; other tables are left alone."""
    oldest = day_of(now_ns) - timedelta(days=retention_days)
    found = []
    for name in sorted(names):
        match = _NAME.match(name)
        if match is not None and datetime.strptime(match[1], "%Y%m%d").replace(tzinfo=UTC).date() < oldest:
            found.append(name)
    return found
