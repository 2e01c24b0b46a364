"""A secret's value that is pasted into a job is refused, and comes back in no answer, log line or event."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from tidegate_events.frame import encode

CANARY = "sk-CANARY-7Qx9vT2mZ8"
AMOUNTS = {"cpu_millis": 100, "memory_mib": 64}
BASE: dict[str, Any] = {"command": ["true"], "resources": AMOUNTS}

SMUGGLED: list[dict[str, Any]] = [
    {**BASE, "secrets": {"API_TOKEN": CANARY}},
    {**BASE, "secrets": {"API_TOKEN": {"value": CANARY}}},
    {**BASE, "secrets": {CANARY: "name"}},
    {**BASE, "secrets": [CANARY]},
    {**BASE, "secrets": CANARY},
    {**BASE, "secret_values": {"API_TOKEN": CANARY}},
    {**BASE, "env": {"API_TOKEN": CANARY}},
    {**BASE, "env": {"API_TOKEN": [CANARY]}},
    {**BASE, "env": {CANARY: "1"}},
    {**BASE, "env": {"A": CANARY}, "seed": -1},
    {**BASE, "image": CANARY + " "},
    {**BASE, "type": CANARY},
    {**BASE, "workdir": CANARY},
    {**BASE, "inputs": [{"name": "d", "source": "/" + CANARY}]},
    {**BASE, "idempotency_key": CANARY + " x"},
    {"command": CANARY, "resources": AMOUNTS},
    {"command": ["x"], "resources": {"cpu_millis": CANARY, "memory_mib": 64}},
]


@pytest.mark.parametrize("smuggled", SMUGGLED)
async def test_a_value_is_refused_and_not_repeated(
    bench: Any, smuggled: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    with structlog.testing.capture_logs() as logged:
        answer = await bench.client.post("/v1/jobs", json=smuggled)
    assert answer.status_code == 422
    assert CANARY not in answer.text
    assert CANARY not in str(answer.headers)
    assert logged
    assert CANARY not in str(logged)
    assert await bench.journal.end() == 0
    assert CANARY not in "".join(capfd.readouterr())


async def test_a_value_in_broken_json_is_not_repeated(bench: Any) -> None:
    body = b'{"secrets": {"A": "' + CANARY.encode() + b'"}, '
    answer = await bench.client.post("/v1/jobs", content=body)
    assert answer.status_code == 422
    assert CANARY not in answer.text


async def test_a_reference_reaches_the_event_and_nothing_else(bench: Any) -> None:
    assert (await bench.submit({**BASE, "secrets": {"API_TOKEN": "my-token"}})).status_code == 201
    recorded = await bench.journal.last("tg.fact.gateway.g1")
    wire = msgspec.json.decode(encode(recorded.frame))
    assert wire["events"][0]["spec"]["secrets"] == {"API_TOKEN": "my-token"}


async def test_with_a_secrets_directory_unknown_names_are_refused(make_bench: Any, tmp_path: Path) -> None:
    (tmp_path / "secrets" / "default").mkdir(parents=True)
    (tmp_path / "secrets" / "default" / "known").write_text("value")
    async with make_bench(tmp_path / "g", secrets_dir=tmp_path / "secrets") as bench:
        assert (await bench.submit({**BASE, "secrets": {"A": "known"}})).status_code == 201
        assert (
            "no secret of this name"
            in (await bench.problems({**BASE, "secrets": {"A": "looks-like-a-name"}}))["secrets.A"]
        )
