"""The projector as it is run: killed at random points, its database away, rebuilt under readers, told wrong things."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tidegate_events import bus
from tidegate_events.bus import BusSettings
from tidegate_events.journal.base import Recorded
from tidegate_events.journal.nats import NatsJournal
from tidegate_gateway.database import generations
from tidegate_gateway.database.connection import Database

from tests.gateway.projector.histories import Story, snapshot
from tests.gateway.projector.process import ProjectorProcess, append, folded, loaded, position, until
from tests.gateway.projector.test_projection import dump
from tests.support.nats import NatsServer
from tests.support.postgres import PostgresServer

JOURNAL_BYTES_MAX = 64 * 1024 * 1024
SEED = 20_261_129
KILLS = 12


def history(events: int, seed: int = SEED) -> list[Recorded]:
    """Return a history with jobs in all states."""
    draw = random.Random(seed)
    kinds = [
        "submit",
        "pass",
        "start",
        "phase",
        "phase",
        "applied",
        "save",
        "exit",
        "late",
        "join",
        "cancel",
        "verified",
    ]
    outcomes = ["completed", "suspended", "failed", "stopped", "lost"]
    story = Story()
    for action in (("submit", 1, ""), ("pass", 0, ""), ("start", 0, "")):
        story.act(*action)
    while len(story.frames) < events:
        story.act(draw.choice(kinds), draw.randrange(6), draw.choice(outcomes))
    return story.frames


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[NatsServer]:
    server = NatsServer(tmp_path)
    await server.start()
    yield server
    server.stop()


@pytest.fixture
async def journal(nats: NatsServer) -> AsyncIterator[NatsJournal]:
    client = await bus.connect(BusSettings(url=nats.url))
    made = NatsJournal(client)
    await made.ensure_stream(max_bytes=JOURNAL_BYTES_MAX)
    yield made
    await client.close()


@pytest.fixture
async def url(postgres: PostgresServer) -> str:
    return await postgres.fresh_database()


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    made = Database(url, name="test")
    await made.open()
    yield made
    await made.close()


@pytest.fixture
async def projector(tmp_path: Path, nats: NatsServer, url: str) -> AsyncIterator[ProjectorProcess]:
    made = ProjectorProcess(tmp_path, nats.url, url)
    yield made
    made.stop()


async def test_kill_9_at_random_points_changes_nothing(
    projector: ProjectorProcess, journal: NatsJournal, database: Database
) -> None:
    frames = history(700)
    draw = random.Random(SEED)
    written = 0
    for _ in range(KILLS):
        projector.start()
        more = draw.randrange(20, 60)
        await append(journal, frames[written : written + more])
        written += more
        if draw.random() < 0.7:
            await asyncio.sleep(draw.uniform(0.0, 1.2))
        else:
            goal = draw.randrange(written - more, written)
            await until(lambda goal=goal: _reached(database, goal), f"frame {goal}")
        projector.end(signal.SIGKILL)
    projector.start()
    await append(journal, frames[written:])
    await until(lambda: _reached(database, len(frames)), "the end")
    assert snapshot(await loaded(database)) == snapshot(folded(frames))
    assert projector.end(signal.SIGTERM) == 0
    assert all(line["level"] != "error" for line in projector.lines())


async def test_a_postgres_that_restarts_in_mid_run_is_survived(
    projector: ProjectorProcess, journal: NatsJournal, database: Database, postgres: PostgresServer
) -> None:
    frames = history(500)
    projector.start()
    await append(journal, frames[:150])
    await until(lambda: _reached(database, 100), "frame 100")
    postgres.kill9()
    await append(journal, frames[150:250])
    await postgres.start()
    await append(journal, frames[250:300])
    await until(lambda: _reached(database, 280), "frame 280")
    await postgres.restart()
    await append(journal, frames[300:])
    await until(lambda: _reached(database, len(frames)), "the end")
    assert snapshot(await loaded(database)) == snapshot(folded(frames))
    assert projector.running, "it healed by itself"


async def test_a_rebuild_is_not_noticed_by_readers(
    projector: ProjectorProcess, journal: NatsJournal, database: Database
) -> None:
    frames = history(600)
    projector.start()
    await append(journal, frames[:500])
    await until(lambda: _reached(database, 500), "frame 500")
    before = await _rows(database)
    seen: list[tuple[int, int]] = []
    done = asyncio.Event()

    async def read() -> None:
        while not done.is_set():
            async with database.transaction(read_only=True) as connection:
                row = await connection.fetchrow(
                    "SELECT (SELECT count(*) FROM tidegate.events), events FROM tidegate.position"
                )
                seen.append((row[0], row[1]))
            await asyncio.sleep(0.002)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(read())
        rebuilt = await asyncio.to_thread(projector.run, "rebuild")
        await until(lambda: _active(database, 2), "the switch")
        done.set()
    assert rebuilt.returncode == 0, rebuilt.stderr
    assert len(seen) > 20
    assert {read[0] for read in seen} == {read[1] for read in seen} == {seen[0][0]}, "readers saw whole tables only"
    assert await _rows(database) == before
    await append(journal, frames[500:])
    await until(lambda: _reached(database, len(frames)), "the service goes on in the new generation")
    assert snapshot(await loaded(database)) == snapshot(folded(frames))
    async with database.connection() as connection:
        assert await generations.drop_retired(connection, after_seconds=0) == [1]
        assert await connection.fetchval("SELECT count(*) FROM tidegate.jobs") > 0


async def test_the_command_line_asks_the_running_projector_to_rebuild(
    projector: ProjectorProcess, journal: NatsJournal, database: Database
) -> None:
    frames = history(200)
    projector.start()
    await append(journal, frames)
    await until(lambda: _reached(database, len(frames)), "the end")
    rebuilt = await asyncio.to_thread(projector.cli, "projections", "rebuild", "--json")
    assert rebuilt.returncode == 0, rebuilt.stderr
    assert json.loads(rebuilt.stdout)["rebuilt"] == {"generation": 2, "seq": len(frames), "resumed_at": 0}
    shown = await asyncio.to_thread(projector.cli, "projections", "status", "--json")
    states = {one["generation"]: (one["state"], one["seq"], one["lag_frames"]) for one in json.loads(shown.stdout)}
    assert states[2] == ("active", len(frames), 0)
    assert states[1][0] == "retired"
    table = await asyncio.to_thread(projector.cli, "projections", "status")
    assert "active" in table.stdout
    projector.end(signal.SIGKILL)
    unheard = await asyncio.to_thread(projector.cli, "projections", "rebuild")
    assert unheard.returncode == 3
    assert "tidegate-projector rebuild" in unheard.stderr


async def test_tables_of_another_fold_are_projected_again(
    projector: ProjectorProcess, journal: NatsJournal, database: Database
) -> None:
    frames = history(150)
    await append(journal, frames)
    projector.start()
    await until(lambda: _reached(database, len(frames)), "the end")
    projector.end(signal.SIGKILL)
    before = await _rows(database)
    async with database.connection() as connection:
        await connection.execute("UPDATE tidegate.generations SET fold_version = 0")
    projector.start()
    await until(lambda: _active(database, 2), "the switch")
    assert await _rows(database) == before


async def test_dropped_tables_are_projected_again(
    projector: ProjectorProcess, journal: NatsJournal, database: Database
) -> None:
    frames = history(300)
    projector.start()
    await append(journal, frames)
    await until(lambda: _reached(database, len(frames)), "the end")
    before = await _rows(database)
    for drop in ("DROP TABLE tg_1.jobs CASCADE", "DROP SCHEMA tg_2 CASCADE"):
        async with database.connection() as connection:
            await connection.execute(drop)
        await until(lambda: _reached(database, len(frames)), f"the end after {drop}")
        assert await _rows(database) == before


async def test_it_says_what_it_refuses(projector: ProjectorProcess, journal: NatsJournal, database: Database) -> None:
    frames = history(60)
    await append(journal, frames)
    assert projector.run("migrate").stdout.splitlines()[0] == "0001_read_models"
    assert projector.run("migrate").stdout == "nothing to apply\n"
    projector.start()
    await until(lambda: _reached(database, len(frames)), "the end")
    projector.end(signal.SIGKILL)
    status = json.loads(projector.run("status", "--json").stdout)
    assert [(one["generation"], one["state"], one["seq"]) for one in status] == [(1, "active", len(frames))]
    async with database.connection() as connection:
        await connection.execute("UPDATE tg_1.position SET journal = 'another'")
    projector.start()
    await until(lambda: _ended(projector), "its end")
    assert projector.end(signal.SIGTERM) == 1
    assert "another journal" in projector.log.read_text() or "began with another" in projector.log.read_text()
    assert projector.run("rebuild").returncode == 0
    assert snapshot(await loaded(database)) == snapshot(folded(frames))
    projector.environment["TIDEGATE_DATABASE_URL"] = "mysql://user:hidden@x/y"
    refused = projector.run()
    assert refused.returncode == 2
    assert "postgresql://" in refused.stderr
    assert "hidden" not in refused.stderr


async def _reached(database: Database, seq: int) -> bool:
    return await position(database) >= seq


async def _active(database: Database, number: int) -> bool:
    async with database.connection() as connection:
        active = await generations.active(connection)
    return active is not None and active.number == number


async def _ended(projector: ProjectorProcess) -> bool:
    return not projector.running


async def _rows(database: Database) -> object:
    async with database.transaction(read_only=True) as connection:
        active = await generations.active(connection)
        assert active is not None
        return await dump(connection, active.schema)
