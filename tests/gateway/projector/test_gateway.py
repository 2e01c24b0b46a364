"""A gateway with the projection behind it answers as one that remembers everything, and says so where it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from tidegate_events.clock import ManualClock
from tidegate_events.journal.base import Journal, Recorded
from tidegate_events.journal.memory import MemoryJournal
from tidegate_gateway import shell
from tidegate_gateway.asks.memory import MemoryAsker
from tidegate_gateway.database import generations, starting
from tidegate_gateway.database.connection import Database
from tidegate_gateway.database.loader import load_view
from tidegate_gateway.database.starting import OtherJournalError, starting_view
from tidegate_gateway.history import journal as journal_history
from tidegate_gateway.http.app import application
from tidegate_gateway.projector.projection import Projection
from tidegate_gateway.projector.store import Head
from tidegate_gateway.settings import Settings
from tidegate_gateway.view.projection import View

from tests.gateway.projector.histories import snapshot
from tests.gateway.projector.process import folded
from tests.gateway.projector.test_process import history
from tests.gateway.projector.test_projection import fresh
from tests.support.postgres import PostgresServer

FRAMES = 400
PROJECTED = 380
REMEMBERED = 1


class Client:
    """A gateway in memory, asked over its own application."""

    def __init__(self, directory: Path, journal: Journal, kept: tuple[Database, View] | None) -> None:
        self.gateway = shell.build(Settings(data_dir=directory), journal, MemoryAsker(), ManualClock(), kept)
        transport = httpx.ASGITransport(application(self.gateway))
        self._client = httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=30)

    async def __aenter__(self) -> Client:
        self._folding = asyncio.ensure_future(self.gateway.fold.run())
        await self.gateway.fold.wait_for_end(10)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._folding.cancel()
        with suppress(asyncio.CancelledError):
            await self._folding
        await self._client.aclose()

    async def get(self, path: str, **parameters: Any) -> Any:
        """Return the answer's document."""
        answer = await self._client.get(path, params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def status(self, path: str, **parameters: Any) -> tuple[int, Any]:
        """Return status and document."""
        answer = await self._client.get(path, params=parameters or None)
        return answer.status_code, answer.json()

    async def events(self, **parameters: Any) -> list[Any]:
        """Return all events, page after page."""
        found: list[Any] = []
        after = "0.0"
        for _ in range(1000):
            page = await self.get("/v1/events", after=after, **parameters)
            found += page["events"]
            if page["next"] is None:
                return found
            assert page["next"] != after, "a page without progress"
            after = page["next"]
        raise AssertionError("the pages do not end")


@pytest.fixture
def frames() -> list[Recorded]:
    return history(FRAMES)


@pytest.fixture
async def journal(frames: list[Recorded]) -> MemoryJournal:
    made = MemoryJournal()
    for recorded in frames:
        await made.append(recorded.subject, recorded.frame)
    return made


@pytest.fixture
async def projected(database: Database, frames: list[Recorded]) -> Database:
    """The database with most of the history in it: a projection is always a little behind."""
    generation = await fresh(database)
    projection = await Projection.load(database, generation)
    await projection.write(frames[:PROJECTED], Head(FRAMES, 0, "test"))
    return database


@pytest.fixture
async def whole(tmp_path: Path, journal: MemoryJournal) -> AsyncIterator[Client]:
    """A gateway that remembers everything."""
    async with Client(tmp_path / "whole", journal, None) as made:
        yield made


@pytest.fixture
async def short(tmp_path: Path, journal: MemoryJournal, projected: Database) -> AsyncIterator[Client]:
    """A gateway that has forgotten all ended jobs but one."""
    async with projected.transaction(read_only=True) as connection:
        generation = await generations.active(connection)
        assert generation is not None
        view = await load_view(connection, generation.schema, ended_jobs_max=REMEMBERED)
    async with Client(tmp_path / "short", journal, (projected, view)) as made:
        assert len(made.gateway.fold.view.forgotten) > 2
        yield made


@pytest.fixture
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal is looked through in portions so small that the database is asked."""
    monkeypatch.setattr(journal_history, "FRAMES_PER_ANSWER", 50)


async def test_a_start_loads_what_was_folded(projected: Database, journal: MemoryJournal, frames: Any) -> None:
    view = await starting_view(projected, journal)
    assert view.seq == PROJECTED
    assert snapshot(view) == snapshot(folded(frames[:PROJECTED]))
    for recorded in frames[PROJECTED:]:
        view.apply(recorded)
    assert snapshot(view, timelines=False) == snapshot(folded(frames), timelines=False)


async def test_forgotten_jobs_are_answered_whole(
    short: Client, whole: Client, projected: Database, frames: list[Recorded]
) -> None:
    async with projected.connection() as connection:
        generation = await generations.ensure_active(connection)
    projection = await Projection.load(projected, generation)
    await projection.write(frames[PROJECTED:], Head(FRAMES, 0, "test"))
    listed = await whole.get("/v1/jobs", limit=1000)
    assert await short.get("/v1/jobs", limit=1000) == listed
    for job in listed["jobs"]:
        path = f"/v1/jobs/{job['job_id']}"
        assert await short.get(path) == await whole.get(path)
        assert await short.get(f"{path}/timeline") == await whole.get(f"{path}/timeline")
        asked = {"job": job["job_id"]}
        assert await short.get("/v1/checkpoints", **asked) == await whole.get("/v1/checkpoints", **asked)
        assert await short.events(**asked) == await whole.events(**asked)
        assert await short.events(**asked, limit=3) == await whole.events(**asked)


async def test_lists_of_jobs_page_and_filter_alike(short: Client, whole: Client) -> None:
    for asked in ({"state": "failed"}, {"state": "completed,cancelled"}, {"tenant": "t"}, {"tenant": "other"}):
        assert await short.get("/v1/jobs", **asked) == await whole.get("/v1/jobs", **asked)
    seen: list[str] = []
    before: int | None = 2**53
    while before is not None:
        page = await short.get("/v1/jobs", limit=2, before=before)
        assert page == await whole.get("/v1/jobs", limit=2, before=before) | {"next": page["next"]}
        seen += [job["job_id"] for job in page["jobs"]]
        before = page["next"]
    assert len(seen) == len(set(seen)) == page["total"]


@pytest.mark.usefixtures("small_portions")
async def test_filters_find_what_the_journal_holds(short: Client, whole: Client) -> None:
    every = await whole.events()
    assert len(every) > FRAMES
    middle = every[len(every) // 2]["at_ns"]
    late = every[-5]["at_ns"]
    for asked in (
        {"kind": "JobPlaced"},
        {"kind": "SandboxStarted,PhaseChanged,CheckpointSaved"},
        {"kind": "-DecisionPass"},
        {"tenant": "t", "kind": "JobPlaced"},
        {"since": middle},
        {"until": middle},
        {"since": middle, "until": late, "kind": "PhaseChanged"},
        {"since": late, "until": middle},
    ):
        wanted = [event for event in every if _matches(event, asked)]
        assert await short.events(**asked) == wanted, asked
        assert await short.events(**asked, limit=7) == wanted, asked
        newest = await short.get("/v1/events", last=10, **asked)
        assert newest["events"] == wanted[-10:], asked
        assert newest["complete"]


def _matches(event: Any, asked: dict[str, Any]) -> bool:
    kinds = asked.get("kind", event["kind"]).split(",")
    fits = event["kind"] in kinds or (kinds[0].startswith("-") and event["kind"] != kinds[0][1:])
    of_tenant = "tenant" not in asked or event.get("tenant") == asked["tenant"]
    return fits and of_tenant and asked.get("since", 0) <= event["at_ns"] < asked.get("until", 2**63)


@pytest.mark.usefixtures("small_portions")
async def test_without_postgres_it_serves_what_it_remembers(
    short: Client, whole: Client, postgres: PostgresServer
) -> None:
    forgotten = next(iter(short.gateway.fold.view.forgotten))
    live = next(job.id for job in short.gateway.fold.view.jobs.values() if not job.ended)
    listed = await short.get("/v1/jobs", limit=1000)
    postgres.kill9()
    try:
        for path in (f"/v1/jobs/{forgotten}", f"/v1/events?job={forgotten}"):
            status, said = await short.status(path)
            assert (status, said["code"]) == (503, "database_away"), said
        assert (await short.get(f"/v1/jobs/{live}"))["job_id"] == live
        assert await short.events(job=live) == await whole.events(job=live)
        assert await short.events(kind="JobPlaced") == await whole.events(kind="JobPlaced")
        without = await short.get("/v1/jobs", limit=1000)
        assert without["total"] == listed["total"]
        assert without["missing"] == len(short.gateway.fold.view.forgotten) > 0
    finally:
        await postgres.start()
    assert await short.get("/v1/jobs", limit=1000) == listed


async def test_a_start_without_postgres_folds_from_the_beginning(
    projected: Database, journal: MemoryJournal, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "START_SECONDS_MAX", 0.5)
    postgres.kill9()
    try:
        assert (await starting_view(projected, journal)).seq == 0
    finally:
        await postgres.start()


async def test_tables_of_another_journal_are_refused(projected: Database, frames: Any) -> None:
    shorter, other = MemoryJournal(), MemoryJournal()
    for recorded in frames[:10]:
        await shorter.append(recorded.subject, recorded.frame)
    for recorded in history(FRAMES)[1:]:
        await other.append(recorded.subject, recorded.frame)
    for journal, why in ((shorter, "ends at 10"), (other, "began with")):
        with pytest.raises(OtherJournalError, match=why):
            await starting_view(projected, journal)
