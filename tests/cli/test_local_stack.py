"""What `tidegate status` shows of a local stack: its processes and addresses, and no password."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tidegate.cli import local_stack

GATEWAY = "http://127.0.0.1:7433"
RECORD = {
    "state": "ready",
    "home": "/somewhere",
    "gateway_url": GATEWAY,
    "metrics_url": "http://127.0.0.1:9464/metrics",
    "database_url": "postgresql://operator:hidden@127.0.0.1:5433/tidegate",
    "bus_password": "hidden",
    "services": {"postgres": {"pid": 7, "ready": True, "restarts": 1, "log": "logs/postgres.log"}},
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a stack's home."""
    monkeypatch.setenv("TIDEGATE_HOME", str(tmp_path))
    return tmp_path


def test_processes_and_addresses_without_passwords(home: Path) -> None:
    (home / "stack.json").write_text(json.dumps(RECORD))
    found = local_stack.read(GATEWAY)
    assert found is not None
    assert found["processes"] == {"postgres": {"pid": 7, "ready": True, "restarts": 1}}
    assert found["database"] == "postgresql://127.0.0.1:5433/tidegate"
    assert found["metrics_url"] == RECORD["metrics_url"]
    assert "hidden" not in json.dumps(found)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"gateway_url": "http://127.0.0.1:7433", "services": 3}'])
def test_a_record_of_another_version_is_none(home: Path, text: str) -> None:
    (home / "stack.json").write_text(text)
    assert local_stack.read(GATEWAY) is None


def test_another_gateways_stack_is_not_this_ones(home: Path) -> None:
    assert local_stack.read(GATEWAY) is None
    (home / "stack.json").write_text(json.dumps(RECORD))
    assert local_stack.read("http://127.0.0.1:9999") is None
