"""A real bus with both streams, a real database with the migrations applied, and the service as a process."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import msgspec
import pytest
from nats.aio.client import Client
from tidegate_events import bus, subjects, telemetry
from tidegate_events import events as e
from tidegate_events.frame import Frame, Writer
from tidegate_events.journal.base import Appended
from tidegate_events.journal.nats import NatsJournal
from tidegate_events.resources import Resources
from tidegate_events.spec import JobSpec
from tidegate_events.telemetry import Sample
from tidegate_gateway.database.migrations import migrate

from tests.support.nats import NatsServer
from tests.support.postgres import PostgresServer

SECONDS_MAX = 60
COMMAND = Path(sys.executable).parent / "tidegate-metrics"
_SAMPLE = re.compile(r"^([a-z_0-9]+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'([a-z_]+)="([^"]*)"')

Shown = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parsed(text: str) -> Shown:
    """Return what Prometheus would read: (name, sorted labels) -> value."""
    found: Shown = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = _SAMPLE.match(line)
            assert match is not None, line
            found[match[1], tuple(sorted(_LABEL.findall(match[2] or "")))] = float(match[3])
    return found


def shown(metrics: Shown, name: str, **labels: str) -> float | None:
    """Return the sum of the series of a name that have these labels; None where there is none."""
    wanted = set(labels.items())
    values = [value for (found, having), value in metrics.items() if found == name and wanted <= set(having)]
    return sum(values) if values else None


class Streams:
    """The bus, and a hand that writes samples as agents and facts as the services do."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.journal = NatsJournal(client)
        self._seqs: dict[str, int] = {}

    async def create(self) -> None:
        await self.journal.ensure_stream(max_bytes=64 * 1024**2)
        await self.create_telemetry()

    async def create_telemetry(self) -> None:
        call = f"$JS.API.STREAM.CREATE.{subjects.TELEMETRY_STREAM}"
        answer = await self.client.request(call, msgspec.json.encode(telemetry.stream_config()), timeout=5)
        assert "error" not in msgspec.json.decode(answer.data), answer.data

    async def sample(self, samples: Iterable[Sample]) -> None:
        """Publish samples as one node's agent does, and wait until the stream has them."""
        samples = list(samples)
        for message in telemetry.encode(samples):
            answer = await self.client.request(subjects.telemetry(samples[0].node), message, timeout=5)
            assert "seq" in msgspec.json.decode(answer.data), answer.data

    async def write(self, service: str, instance: str, event: e.AnyEvent) -> None:
        name = f"{service}/{instance}"
        self._seqs[name] = self._seqs.get(name, 0) + 1
        subject = subjects.DECISION if service == "scheduler" else subjects.fact(service, instance)
        frame = Frame(Writer(service, instance, 1, self._seqs[name]), (event,))  # type: ignore[arg-type]
        assert isinstance(await self.journal.append(subject, frame), Appended)

    async def run_job(self, job: str, spec: JobSpec, at_ns: int, node: str = "n1") -> None:
        """Write the journal of a job that runs on a node since `at_ns`."""
        about = {"at_ns": at_ns, "tenant": spec.tenant, "job": job}
        joined = e.NodeJoined(
            id=f"{node}-joins",
            at_ns=at_ns,
            node=node,
            incarnation=1,
            capacity=Resources(2000, 4096),
            levels=("trusted",),
        )
        await self.write("node", node, joined)
        await self.write("gateway", "g1", e.JobSubmitted(id=f"{job}-1", **about, spec=spec))
        member = e.MemberPlacement(rank=0, node=node, incarnation=1, quotas=())
        placed = e.JobPlaced(id=f"{job}-2", **about, revision=0, attempt=1, members=(member,))
        await self.write("scheduler", "s1", placed)
        started = e.SandboxStarted(id=f"{job}-3", **about, attempt=1, rank=0, node=node, level="trusted")
        await self.write("node", node, started)
        await self.write("scheduler", "s1", e.JobStarted(id=f"{job}-4", **about, revision=2, attempt=1))


class Service:
    """One `tidegate-metrics` after the other, on the same settings."""

    def __init__(self, directory: Path, url: str, **environ: str) -> None:
        self.ready_file = directory / "ready"
        self.log = directory / "metrics.log"
        self._env = {
            **os.environ,
            "TIDEGATE_BUS_URL": url,
            "TIDEGATE_METRICS_PORT": "0",
            "TIDEGATE_METRICS_FLUSH_MILLIS": "50",
            "TIDEGATE_READY_FILE": str(self.ready_file),
            **environ,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    async def start(self) -> None:
        """Start it and return when it is ready."""
        self.ready_file.unlink(missing_ok=True)
        before = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - a fork of milliseconds
                [COMMAND], env=self._env, stdin=subprocess.DEVNULL, stderr=log
            )
        async with asyncio.timeout(SECONDS_MAX):
            while not self.ready_file.exists():
                assert self._process.poll() is None, self.log.read_text()[-3000:]
                await asyncio.sleep(0.02)
        lines = [msgspec.json.decode(line) for line in self.log.read_bytes()[before:].splitlines()]
        self._port = next(line["port"] for line in lines if line["event"] == "listening")

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """End it; return its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(how)
        return process.wait(SECONDS_MAX)

    async def metrics(self) -> Shown:
        """Scrape it."""
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"http://127.0.0.1:{self._port}/metrics", timeout=20)
        assert answer.status_code == 200
        return parsed(answer.text)

    async def until(self, name: str, value: float, **labels: str) -> Shown:
        """Scrape until the metric has reached the value."""
        found: Shown = {}
        try:
            async with asyncio.timeout(SECONDS_MAX):
                while shown(found := await self.metrics(), name, **labels) != value:
                    assert self._process is not None
                    assert self._process.poll() is None, self.log.read_text()[-3000:]
                    await asyncio.sleep(0.05)
        except TimeoutError:
            log = self.log.read_text()[-2000:]
            raise AssertionError(f"{name} is {shown(found, name, **labels)}, not {value}; {log}") from None
        return found


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    server = NatsServer(tmp_path)
    await server.start()
    yield server
    server.stop()


@pytest.fixture
async def streams(server: NatsServer) -> AsyncIterator[Streams]:
    client = await bus.connect(bus.BusSettings(url=server.url))
    made = Streams(client)
    await made.create()
    yield made
    await client.close()


@pytest.fixture
async def postgres() -> AsyncIterator[PostgresServer]:
    server = PostgresServer()
    await server.start()
    yield server
    server.remove()


async def migrated(postgres: PostgresServer) -> str:
    """Return the URL of a fresh database that has its tables."""
    url = await postgres.fresh_database()
    connection: Any = await asyncpg.connect(url, timeout=10)
    try:
        await migrate(connection)
    finally:
        await connection.close()
    return url
