"""The real process on a real bus: killed at any moment it neither loses nor doubles a verdict; it ends when told."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.aio.client import Client
from nats.js.api import StreamConfig
from tidegate_events import bus, deadletter, positions
from tidegate_events.events import CheckpointFailed, CheckpointVerified
from tidegate_events.frame import Frame
from tidegate_events.journal.nats import NatsJournal
from tidegate_events.subjects import fact

from tests.checkpoint.saving import Job, frames
from tests.support.nats import NatsServer

SECONDS_MAX = 60


class Process:
    """One `tidegate-checkpoint` after the other."""

    def __init__(self, server: NatsServer, hot_dir: Path, directory: Path) -> None:
        self.ready_file = directory / "ready"
        self.log = directory / "checkpoint.log"
        self._env = {
            **os.environ,
            "TIDEGATE_BUS_URL": server.url,
            "TIDEGATE_HOT_DIR": str(hot_dir),
            "TIDEGATE_INSTANCE": "c1",
            "TIDEGATE_READY_FILE": str(self.ready_file),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = Path(sys.executable).parent / "tidegate-checkpoint"
        self.ready_file.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen([command], env=self._env, stdin=subprocess.DEVNULL, stderr=log)

    async def ready(self) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            while not self.ready_file.exists():
                assert self._process is not None
                assert self._process.poll() is None, self.log.read_text()[-2000:]
                await asyncio.sleep(0.01)

    def end(self, how: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(how)
        return process.wait(SECONDS_MAX)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    server = NatsServer(tmp_path)
    await server.start()
    yield server
    server.stop()


@pytest.fixture
async def client(server: NatsServer) -> AsyncIterator[Client]:
    client = await bus.connect(bus.BusSettings(url=server.url))
    await NatsJournal(client).ensure_stream(max_bytes=16 * 1024 * 1024)
    for config in (positions.stream_config(max_bytes=1024 * 1024), deadletter.stream_config(max_bytes=1024 * 1024)):
        await client.jetstream().add_stream(StreamConfig.from_response(config))
    yield client
    await client.close()


@pytest.fixture
async def process(server: NatsServer, client: Client, job: Job, tmp_path: Path) -> AsyncIterator[Process]:
    process = Process(server, job.hot_dir, tmp_path)
    yield process
    process.end(signal.SIGKILL)


async def said(journal: NatsJournal) -> Counter[str]:
    found: Counter[str] = Counter()
    async with aclosing(journal.read(0, await journal.end())) as recorded_frames:
        async for recorded in recorded_frames:
            for event in recorded.frame.events:
                if isinstance(event, CheckpointVerified | CheckpointFailed):
                    found[event.checkpoint_id] += 1
    return found


async def until(journal: NatsJournal, count: int) -> Counter[str]:
    """Wait for that many verdicts, then for what the service would still add; return all there are."""
    seen = 0
    async with asyncio.timeout(SECONDS_MAX), aclosing(journal.follow(0)) as recorded_frames:
        async for recorded in recorded_frames:
            seen += sum(isinstance(event, CheckpointVerified | CheckpointFailed) for event in recorded.frame.events)
            if seen >= count:
                break
    await asyncio.sleep(0.2)
    return await said(journal)


async def ask(client: Client, what: str, **question: Any) -> dict[str, Any]:
    answer = await client.request(f"tg.ask.checkpoint.{what}", msgspec.json.encode(question), timeout=10)
    found: dict[str, Any] = msgspec.json.decode(answer.data)
    return found


async def test_kill9_at_any_moment_neither_loses_nor_doubles_a_verdict(
    client: Client, process: Process, job: Job
) -> None:
    journal = NatsJournal(client)
    jobs = [Job(job.hot_dir, id=f"j-{number}") for number in range(4)]
    saved = [each.save(step) for each in jobs for step in range(1, 26)]
    writers = frames()
    for report in saved:
        await journal.append(fact("node", "n1"), Frame(next(writers), (report,)))
    chance = random.Random(7)
    for _ in range(5):
        process.start()
        await process.ready()
        await asyncio.sleep(chance.uniform(0, 0.05))
        process.end(signal.SIGKILL)
    process.start()
    found = await until(journal, len(saved))
    assert found == {report.checkpoint.id: 1 for report in saved}


async def test_a_killed_bus_neither_loses_nor_doubles_a_verdict(
    server: NatsServer, client: Client, process: Process, job: Job
) -> None:
    journal = NatsJournal(client)
    process.start()
    await process.ready()
    saved = [job.save(step) for step in range(1, 41)]
    writers = frames()
    for number, report in enumerate(saved):
        if number == 20:
            await server.restart()
        await journal.append(fact("node", "n1"), Frame(next(writers), (report,)))
    await server.restart()
    found = await until(journal, len(saved))
    assert found == {report.checkpoint.id: 1 for report in saved}


async def test_it_answers_and_ends_when_told(client: Client, process: Process, job: Job) -> None:
    journal = NatsJournal(client)
    saved = job.save(7)
    await journal.append(fact("node", "n1"), Frame(next(frames()), (saved,)))
    process.start()
    await process.ready()
    await until(journal, 1)
    listed = await ask(client, "ls", job="j-1")
    assert [(each["id"], each["present"]) for each in listed["checkpoints"]] == [(saved.checkpoint.id, True)]
    plan = await ask(client, "restore", job="j-1", layers=["model"])
    assert [(each["name"], each["kind"]) for each in plan["layers"]] == [("model", "values")]
    assert (await ask(client, "restore", job="j-1", layers=["nothing"]))["code"] == "UnknownLayer"
    assert process.end(signal.SIGTERM) == 0
    assert all(msgspec.json.decode(line) for line in process.log.read_bytes().splitlines())


async def test_it_ends_when_told_while_the_bus_is_away(server: NatsServer, client: Client, process: Process) -> None:
    process.start()
    await process.ready()
    server.kill9()
    await asyncio.sleep(0.5)
    assert process.end(signal.SIGTERM) == 0


def test_it_says_what_it_lacks() -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
    command = Path(sys.executable).parent / "tidegate-checkpoint"
    refused = subprocess.run([command], env=env, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert refused.returncode == 2
    assert "TIDEGATE_HOT_DIR" in refused.stderr
