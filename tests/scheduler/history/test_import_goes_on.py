"""After an import the journal goes on: the next generation begins behind it, guards hold, and it all verifies."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from nats.aio.client import Client
from tidegate_events import bus
from tidegate_events import events as e
from tidegate_events.frame import Frame, Writer
from tidegate_events.journal.archive import ArchiveDirectory
from tidegate_events.journal.base import Appended, Conflict
from tidegate_events.journal.generations import generations
from tidegate_events.journal.nats import NatsJournal
from tidegate_events.subjects import DECISION, fact
from tidegate_local import streams
from tidegate_scheduler.history.commands.proving import prove
from tidegate_scheduler.history.errors import HistoryMissingError
from tidegate_scheduler.history.importing import ARCHIVE_IN_HOME, check_file, install
from tidegate_scheduler.history.moment import Moment
from tidegate_scheduler.history.point import reach
from tidegate_scheduler.history.source import open_bus

from tests.scheduler.history.files import a_history, told, write
from tests.support.nats import NatsServer
from tests.support.schedulers import SchedulerProcess

JOURNAL_BYTES = 64 * 1024**2
WAIT_SECONDS = 60


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    made = NatsServer(tmp_path)
    await made.start()
    yield made
    made.stop()


@pytest.fixture
async def client(server: NatsServer) -> AsyncIterator[Client]:
    made = await bus.connect(bus.BusSettings(url=server.url))
    yield made
    await made.close()


async def imported(tmp_path: Path, client: Client) -> tuple[Path, int]:
    """Import a history into an empty home and open its streams as `up` does; return archive and last sequence."""
    file = write(tmp_path / "export.tgj", a_history().frames)
    home = tmp_path / "home"
    last_seq = check_file(file).last_seq
    install(file, home)
    archive = home / ARCHIVE_IN_HOME
    for _ in range(2):  # as often as a server starts
        await streams.create(client, journal_bytes=JOURNAL_BYTES, replicas=1, archive=archive)
    return archive, last_seq


async def test_the_next_generation_begins_behind_it_and_guards_hold(tmp_path: Path, client: Client) -> None:
    archive, last_seq = await imported(tmp_path, client)
    (live,) = await generations(client)
    assert (live.number, live.first_seq, live.live) == (2, last_seq + 1, True)
    journal = NatsJournal(client, ArchiveDirectory(archive))
    assert await journal.end() == last_seq
    last = await journal.last(DECISION)
    assert last is not None
    elected = e.LeaderElected(id="2-leader", at_ns=1, epoch=2, instance="s2")
    frame = Frame(Writer("scheduler", "s2", 2, 0), (elected,))
    assert isinstance(await journal.append(DECISION, frame, expected_last=last.seq - 1), Conflict)
    assert await journal.append(DECISION, frame, expected_last=last.seq) == Appended(last_seq + 1)
    assert [recorded.seq async for recorded in journal.read(0, last_seq + 1)] == list(range(1, last_seq + 2))


async def test_scheduler_and_keeper_go_on_and_the_whole_verifies(
    tmp_path: Path, server: NatsServer, client: Client
) -> None:
    archive, last_seq = await imported(tmp_path, client)
    variables = {"TIDEGATE_JOURNAL_ARCHIVE_DIR": str(archive)}
    scheduler = SchedulerProcess(tmp_path, server.url, "s2", **variables)
    with (tmp_path / "keeper.log").open("ab") as log:
        keeper = subprocess.Popen(  # noqa: ASYNC220 - a fork of milliseconds
            [Path(sys.executable).with_name("tidegate-keeper")],
            env={**os.environ, **variables, "TIDEGATE_BUS_URL": server.url},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        await scheduler.ready()
        journal = NatsJournal(client, ArchiveDirectory(archive))
        cancel = Frame(Writer("gateway", "g2", 1, 0), (e.CancelRequested(id="c", at_ns=1, tenant="t", job="last"),))
        await journal.append(fact("gateway", "g2"), cancel)
        opened: list[e.GenerationOpened] = []
        stopped: list[str] = []
        async with asyncio.timeout(WAIT_SECONDS), aclosing(journal.follow(last_seq)) as frames:
            async for recorded in frames:
                opened += [x for x in recorded.frame.events if isinstance(x, e.GenerationOpened)]
                stopped += [x.job for x in recorded.frame.events if isinstance(x, e.StopRequested)]
                if opened and stopped:
                    break
        info = check_file(archive / "journal-1.tgj")
        assert stopped == ["last"]
        assert (opened[0].generation, opened[0].first_seq, opened[0].sealed_digest) == (2, last_seq + 1, info.digest)
        async with open_bus(bus.BusSettings(url=server.url), archive) as source:
            whole = await prove(source, Moment(), Moment(), told)
            assert whole.ok, whole.difference
            assert (whole.frames, whole.unproved) == (source.end, 0)
            tail = await prove(source, Moment(seq=last_seq + 1), Moment(), told)
            assert tail.ok
            assert tail.frames < whole.frames  # it began at the keeper's snapshot
    finally:
        scheduler.end()
        keeper.terminate()
        keeper.wait(WAIT_SECONDS)


async def test_without_the_archive_history_begins_where_its_streams_do(
    tmp_path: Path, client: Client, server: NatsServer
) -> None:
    archive, last_seq = await imported(tmp_path, client)
    for directory, first in ((archive, 1), (None, last_seq + 1)):
        async with open_bus(bus.BusSettings(url=server.url), directory) as source:
            assert source.first == first
            if directory is None:
                with pytest.raises(HistoryMissingError, match="no snapshot lies between") as refused:
                    await reach(source, Moment(), told)
                assert "TIDEGATE_JOURNAL_ARCHIVE_DIR" in refused.value.remedy
            else:
                assert (await reach(source, Moment(), told)).state.seq == last_seq
