"""A dry run through a real gateway and a real scheduler on a real bus: answered, and nothing of it in the journal."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from tidegate_events import events as e
from tidegate_events import subjects
from tidegate_events.clock import SystemClock
from tidegate_events.frame import Frame, Writer
from tidegate_events.resources import Resources
from tidegate_gateway import shell
from tidegate_gateway.asks.nats import NatsAsker
from tidegate_gateway.http.app import application
from tidegate_gateway.settings import Settings

from tests.support.schedulers import Stage, on_a_stage

POLLS_MAX = 200
POLL_SECONDS = 0.05


async def _join(stage: Stage) -> None:
    joined = e.NodeJoined(
        id="join",
        at_ns=SystemClock().now_ns(),
        node="n1",
        incarnation=1,
        capacity=Resources(2000, 4096),
        levels=("trusted",),
        images={"host": "b3:0"},
    )
    await stage.journal.append(subjects.fact("node", "n1"), Frame(Writer("node", "n1", 1, 1), (joined,)))


async def _answered(client: httpx.AsyncClient, job: dict[str, Any], verdict: str) -> dict[str, Any]:
    """Ask until the scheduler has folded what the journal holds."""
    found: dict[str, Any] = {}
    for _ in range(POLLS_MAX):
        answer = await client.post("/v1/jobs", params={"dry_run": "1"}, json=job)
        found = answer.json()
        if answer.status_code == 200 and found["verdict"] == verdict:
            return found
        await asyncio.sleep(POLL_SECONDS)
    raise AssertionError(found)


async def _kinds(stage: Stage) -> list[str]:
    return [type(event).__name__ for recorded in await stage.history() for event in recorded.frame.events]


@pytest.mark.timeout(120)
async def test_a_dry_run_is_answered_and_leaves_nothing(tmp_path: Path) -> None:
    async with on_a_stage(tmp_path) as stage, asyncio.TaskGroup() as tasks:
        scheduler = stage.start("s1")
        await scheduler.ready()
        await _join(stage)
        asker = NatsAsker(stage.client)
        gateway = shell.build(Settings(data_dir=tmp_path / "gateway"), stage.journal, asker, SystemClock())
        folding = tasks.create_task(gateway.fold.run())
        await gateway.fold.until_caught_up()
        transport = httpx.ASGITransport(application(gateway))
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=30) as client:
            job = {"command": ["true"], "resources": {"cpu_millis": 1500, "memory_mib": 512}}
            found = await _answered(client, job, "starts_now")
            assert (found["nodes"], found["displaces"], found["dry_run"]) == (["n1"], [], True)
            assert "JobSubmitted" not in await _kinds(stage)
            taken = await client.post("/v1/jobs", json=job)
            assert taken.status_code == 201, taken.text
            displaces = await _answered(client, job | {"priority": 90}, "displaces")
            assert [each["job_id"] for each in displaces["displaces"]] == [taken.json()["job_id"]]
            assert displaces["starts_basis"] == "deadline"
            waits = await _answered(client, job, "waits")
            assert (waits["position"], waits["reasons"][0]["code"]) == (1, "Reserved")
            asked = await asker.ask(subjects.ask_scheduler("dry-run"), {"spec": {"name": 1}}, 5)
            assert "spec" in asked["error"]
        kinds = await _kinds(stage)
        assert kinds.count("JobSubmitted") == kinds.count("JobPlaced") == 1
        assert "PreemptRequested" not in kinds
        folding.cancel()
