"""`tidegate trace` and `tidegate timeline` against the real gateway with spans in a real PostgreSQL."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs
from tidegate_events import trace
from tidegate_gateway.database import generations
from tidegate_gateway.database.connection import Connection, Database
from tidegate_gateway.database.migrations import migrate
from tidegate_gateway.traces import store

from tests.cli import live as live_module
from tests.cli.conftest import Cli
from tests.cli.live import LiveGateway
from tests.cli.story import HIGH, LOW, preempted_and_resumed
from tests.gateway.traces.telling import derived
from tests.support.postgres import PostgresServer


class Lazy(Database):
    """A database whose pool is made in the loop that uses it first."""

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Connection, None]:
        if self._pool is None:
            await self.open()
        async with super().connection() as connection:
            yield connection


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    asyncio.run(server.start())
    yield server
    server.remove()


@pytest.fixture
def live(tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveGateway]:
    """The live gateway with the story and its spans."""
    database = Lazy(asyncio.run(postgres.fresh_database()), name="test")
    real = live_module.build
    monkeypatch.setattr(live_module, "build", lambda *parts: msgspec.structs.replace(real(*parts), database=database))
    with capture_logs():
        gateway = LiveGateway(tmp_path / "gateway")
        preempted_and_resumed(gateway)
        gateway._in_loop(keep(database, gateway))
        yield gateway
        gateway._in_loop(database.close())
        gateway.close()


async def keep(database: Database, gateway: LiveGateway) -> None:
    async with database.transaction() as connection:
        await migrate(connection)
        generation = await generations.ensure_active(connection)
        await store.write(connection, generation.schema, derived(gateway.cluster.frames), {})


def test_the_tree_tells_the_story(cli: Cli) -> None:
    ran = cli("trace", LOW)
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert trace.trace_id(LOW) in lines[0]
    words = {word for line in lines[2:] for word in line.split()}
    assert words >= {
        *("submit", "queue", "attempt", "image", "sandbox", "start", "preempt", "suspend", "resume", "restore"),
        *("save", "verify", "end"),
    }
    (end,) = [line for line in lines if "└ end" in line]
    assert "mean_return 199.5" in end
    assert any(f"for_job {HIGH}" in line for line in lines)
    indented = next(line for line in lines if "sandbox" in line)
    assert "│ ├ sandbox" in indented
    assert "more spans (--all shows them)" not in cli("trace", LOW, "--all").out
    document = cli("trace", LOW, "--json").document
    assert document["result"]["resourceSpans"]


def test_the_perfetto_file_can_be_opened(cli: Cli, tmp_path: Path) -> None:
    target = tmp_path / "job.json"
    ran = cli("timeline", LOW, "--perfetto", str(target))
    assert (ran.code, ran.out) == (0, "")
    assert str(target) in ran.err
    document = json.loads(target.read_text())
    assert_opens(document)
    names = {event["args"]["name"] for event in document["traceEvents"] if event["name"] == "thread_name"}
    assert {"scheduling", "leaving", "rank 0: sandbox", "rank 0: phases"} <= names
    assert json.loads(cli("timeline", LOW, "--perfetto", "-").out) == document
    assert cli("timeline", LOW, "--perfetto", str(target), "--json").document["spans"] > 10


def assert_opens(document: dict[str, Any]) -> None:
    """Check what the Trace Event format asks for; above all, that slices of one track follow each other."""
    ends: dict[int, float] = {}
    slices = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert slices
    for event in sorted(slices, key=lambda event: event["ts"]):
        assert event["ts"] >= ends.get(event["tid"], 0.0)
        assert event["dur"] > 0
        ends[event["tid"]] = event["ts"] + event["dur"]
    for event in document["traceEvents"]:
        assert event["ph"] in ("X", "i", "M")
        assert event["pid"] == 1
        assert event["ph"] == "M" or event["ts"] >= 0


def test_a_timeline_without_a_file_is_text(cli: Cli) -> None:
    ran = cli("timeline", LOW)
    assert ran.code == 0
    assert "asked to save and leave" in ran.out


def test_what_is_not_there_is_said(cli: Cli, tmp_path: Path) -> None:
    assert cli("trace", "j-nobody").code == 4
    assert cli("timeline", "j-nobody", "--perfetto", "-").code == 4
    ran = cli("timeline", LOW, "--perfetto", str(tmp_path / "no" / "file.json"))
    assert ran.code == 3
    assert "cannot be written" in ran.err


@pytest.mark.usefixtures("postgres")
def test_a_gateway_without_a_database_says_so(tmp_path: Path, offline: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    with capture_logs():
        gateway = LiveGateway(tmp_path / "gateway")
        preempted_and_resumed(gateway)
        monkeypatch.setenv("TIDEGATE_URL", gateway.url)
        ran = offline("trace", LOW)
        gateway.close()
    assert ran.code == 3
    assert "TIDEGATE_DATABASE_URL" in ran.err
