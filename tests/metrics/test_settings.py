"""Settings are checked before anything starts, and the database's password shows nowhere."""

from __future__ import annotations

import pytest
from tidegate_metrics.settings import SettingsError, from_environment

URL = "postgresql://metrics:hunter2@127.0.0.1/tidegate"


def test_all_can_be_set_and_none_must_be() -> None:
    plain = from_environment({})
    assert (plain.instance, plain.port, plain.database_url, plain.window_seconds) == ("m1", 9464, "", 10)
    given = from_environment(
        {
            "TIDEGATE_INSTANCE": "local",
            "TIDEGATE_METRICS_PORT": "0",
            "TIDEGATE_DATABASE_URL": URL,
            "TIDEGATE_RATE_WINDOW_SECONDS": "3",
            "TIDEGATE_RATE_WINDOWS": "2",
            "TIDEGATE_RATE_MARGIN_PERCENT": "0",
            "TIDEGATE_METRICS_FLUSH_MILLIS": "250",
        }
    )
    assert (given.instance, given.port, given.database_url) == ("local", 0, URL)
    assert (given.window_seconds, given.thresholds.windows, given.thresholds.margin_percent) == (3, 2, 0)
    assert given.flush_seconds == 0.25
    assert "hunter2" not in repr(given)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TIDEGATE_INSTANCE", "a b"),
        ("TIDEGATE_METRICS_PORT", "70000"),
        ("TIDEGATE_RATE_WINDOW_SECONDS", "0"),
        ("TIDEGATE_RATE_WINDOWS", "some"),
        ("TIDEGATE_METRICS_RETENTION_DAYS", "-1"),
        ("TIDEGATE_DATABASE_URL", "mysql://u:hunter2@h/d"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name) as refused:
        from_environment({name: value})
    assert "hunter2" not in str(refused.value)
