"""`tidegate-scheduler history verify` as a process: one JSON document, exit codes, a remedy when nothing is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from tidegate_events import bus
from tidegate_events.events import JobPlaced
from tidegate_events.frame import Frame
from tidegate_events.journal.nats import NatsJournal

from tests.support.cluster import Cluster, spec
from tests.support.nats import NatsServer

COMMAND = Path(sys.executable).with_name("tidegate-scheduler")


def verify(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TIDEGATE_BUS_URL": url}
    return subprocess.run(
        [COMMAND, "history", "verify", *arguments], env=env, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    made = NatsServer(tmp_path)
    await made.start()
    yield made
    made.stop()


async def record(server: NatsServer, cluster: Cluster) -> None:
    client = await bus.connect(bus.BusSettings(url=server.url))
    journal = NatsJournal(client)
    await journal.ensure_stream(max_bytes=64 * 1024 * 1024)
    for recorded in cluster.frames:
        await journal.append(recorded.subject, recorded.frame)
    await client.close()


def a_run() -> Cluster:
    cluster = Cluster()
    cluster.node("n1")
    job = cluster.submit(spec(100))
    cluster.settle()
    cluster.start(job)
    cluster.exit(job, "completed")
    return cluster


async def test_an_equal_history_is_one_json_document_and_exit_code_0(server: NatsServer) -> None:
    await record(server, a_run())
    run = verify(server.url, "--json")
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert report["ok"] is True
    assert report["decisions"] == report["decisions_verified"] == 3
    assert "3 of 3 decisions" in verify(server.url).stdout


async def test_another_history_shows_both_sides_and_exit_code_1(server: NatsServer) -> None:
    cluster = a_run()
    for index, recorded in enumerate(cluster.frames):
        head, *decisions = recorded.frame.events
        if decisions and isinstance(decisions[0], JobPlaced):
            forged = msgspec.structs.replace(decisions[0], attempt=7)
            frame = Frame(recorded.frame.writer, (head, forged))
            cluster.frames[index] = msgspec.structs.replace(recorded, frame=frame)
    await record(server, cluster)
    run = verify(server.url)
    assert run.returncode == 1
    assert "HISTORY DIFFERS at sequence 5" in run.stdout
    assert '"attempt":7' in run.stdout
    assert '"attempt":1' in run.stdout


def test_no_stack_is_exit_code_3_with_a_remedy(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
    run = subprocess.run(
        [COMMAND, "history", "verify", "--home", str(tmp_path)],
        env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert run.returncode == 3
    assert "--home" in run.stderr
