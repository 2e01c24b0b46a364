"""The gateway's own process with the read models behind it: what it loads at its start, and what it does without."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from tidegate_gateway.database.connection import Database

from tests.gateway.projector.process import ProjectorProcess, position, until
from tests.gateway.test_process import GatewayProcess
from tests.support.nats import NatsServer
from tests.support.postgres import PostgresServer


@pytest.fixture
async def url(postgres: PostgresServer) -> str:
    return await postgres.fresh_database()


async def test_a_killed_gateway_comes_back_from_the_tables_and_without_them_from_the_journal(
    tmp_path: Path, postgres: PostgresServer, url: str, valid: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_DATABASE_URL", url)
    nats, database = NatsServer(tmp_path), Database(url, name="test")
    await nats.start()
    await database.open()
    gateway, projector = GatewayProcess(tmp_path, nats.url), ProjectorProcess(tmp_path, nats.url, url)
    try:
        await asyncio.to_thread(gateway.start)
        assert _said(gateway, "view_from_journal")
        projector.start()
        jobs = [await asyncio.to_thread(_submit, gateway, {**valid, "seed": seed}) for seed in range(3)]
        await until(lambda: _projected(database, 3), "the submissions")
        before = await asyncio.to_thread(_answers, gateway, jobs)
        gateway.end(signal.SIGKILL)
        await asyncio.to_thread(gateway.start)
        loaded = _said(gateway, "view_loaded")
        assert loaded is not None
        assert loaded["jobs"] == 3
        assert await asyncio.to_thread(_answers, gateway, jobs) == before
        # Without PostgreSQL it takes longer to start, and knows as much.
        gateway.end(signal.SIGKILL)
        postgres.kill9()
        await asyncio.to_thread(gateway.start)
        why = _said(gateway, "view_from_journal")
        assert why is not None
        assert "PostgreSQL is away" in why["why"]
        assert await asyncio.to_thread(_answers, gateway, jobs) == before
        jobs.append(await asyncio.to_thread(_submit, gateway, {**valid, "seed": 9}))
        await postgres.start()
        await until(lambda: _projected(database, 4), "the submission that was made meanwhile")
        assert gateway.end(signal.SIGTERM) == 0
    finally:
        projector.stop()
        if gateway.process is not None and gateway.process.poll() is None:
            gateway.end(signal.SIGKILL)
        await database.close()
        nats.stop()


def _said(gateway: GatewayProcess, event: str) -> dict[str, Any] | None:
    return next((line for line in gateway.lines() if line["event"] == event), None)


def _submit(gateway: GatewayProcess, spec: Any) -> str:
    answer = httpx.post(f"{gateway.url}/v1/jobs", json=spec, timeout=30)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["job_id"])


def _answers(gateway: GatewayProcess, jobs: list[str]) -> list[Any]:
    paths = ["/v1/jobs", "/v1/events?kind=JobSubmitted", *(f"/v1/jobs/{job}/timeline" for job in jobs)]
    return [httpx.get(f"{gateway.url}{path}", timeout=30).json() for path in paths]


async def _projected(database: Database, seq: int) -> bool:
    return await position(database) >= seq
