"""What an operator may set, and what is refused with what would be accepted."""

from __future__ import annotations

import pytest
from tidegate_scheduler.settings import SettingsError, from_environment


def test_the_lease_is_a_second_unless_set_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDEGATE_LEASE_SECONDS", raising=False)
    assert from_environment().lease_seconds == 1.0
    monkeypatch.setenv("TIDEGATE_LEASE_SECONDS", "2.5")
    assert from_environment().lease_seconds == 2.5


@pytest.mark.parametrize("text", ["0.1", "31", "-1", "nan", "inf", "soon", ""])
def test_a_lease_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TIDEGATE_LEASE_SECONDS", text)
    with pytest.raises(SettingsError, match=r"TIDEGATE_LEASE_SECONDS is .*0\.2 to 30"):
        from_environment()


def test_a_policy_that_cannot_be_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_POLICY", '{"node_lost_seconds": "soon"}')
    with pytest.raises(SettingsError, match="TIDEGATE_POLICY"):
        from_environment()
