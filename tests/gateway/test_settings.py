"""Settings and the tenants file: what cannot be used is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidegate_gateway import tenants
from tidegate_gateway.settings import SettingsError, from_arguments


def test_a_flag_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_BUS_URL", "nats://127.0.0.1:1")
    made = from_arguments(["--port", "7"], {"TIDEGATE_PORT": "8", "TIDEGATE_INPUT_ROOTS": "/a:/b"})
    assert (made.port, made.input_roots, made.bus.url) == (7, (Path("/a"), Path("/b")), "nats://127.0.0.1:1")


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--host", "0.0.0.0"], "--host"),
        (["--host", "example.org"], "--host"),
        (["--port", "70000"], "--port"),
        (["--port", "x"], "--port"),
        (["--instance", "a.b"], "--instance"),
        (["--input-roots", "relative"], "--input-roots"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(arguments: list[str], names: str) -> None:
    with pytest.raises(SettingsError, match=names):
        from_arguments(arguments, {})


@pytest.mark.parametrize(
    "text", ["", "[]", '{"tenants": {"a": 5}}', '{"tenant": {}}', '{"default": {"max_priority": 101}}']
)
def test_a_tenants_file_that_cannot_be_used_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tenants.json"
    file.write_text(text)
    with pytest.raises(tenants.TenantsFileError):
        tenants.load(file)
