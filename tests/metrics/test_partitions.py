"""Partitions: a day each, in UTC, and only those past the retention go."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate_metrics import partitions

DAY = 86_400 * 1_000_000_000


@given(st.integers(0, 4_000_000_000))
def test_a_time_falls_on_its_day_in_utc(seconds: int) -> None:
    assert partitions.day_of(seconds * 1_000_000_000) == datetime.fromtimestamp(seconds, UTC).date()


def test_a_partition_holds_exactly_one_day() -> None:
    statement = partitions.create(date(2026, 12, 31))
    assert "metric_windows_20261231" in statement
    assert "FROM ('2026-12-31T00:00:00Z') TO ('2027-01-01T00:00:00Z')" in statement


def test_only_whole_days_past_the_retention_go_and_foreign_tables_stay() -> None:
    now_ns = int(datetime(2026, 11, 29, 23, tzinfo=UTC).timestamp()) * 1_000_000_000
    names = [partitions.name_of(date(2026, 11, day)) for day in range(20, 30)]
    others = ["metric_windows_2026112", "metric_windows_20261120_old", "jobs", "metric_windows"]
    gone = partitions.expired([*names, *others], now_ns, retention_days=7)
    assert gone == ["metric_windows_20261120", "metric_windows_20261121"]


def test_nothing_else_can_be_dropped() -> None:
    with pytest.raises(ValueError, match="no partition"):
        partitions.drop("telemetry_position; DROP TABLE tidegate.generations")
