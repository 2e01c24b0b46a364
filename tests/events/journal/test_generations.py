"""Generations on a real server: the journal goes on in the next stream, and nobody who reads or writes can tell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest
from nats.aio.client import Client
from tidegate_events import bus
from tidegate_events.frame import encode
from tidegate_events.journal import nats_read
from tidegate_events.journal.archive import ArchiveDirectory
from tidegate_events.journal.base import (
    Appended,
    Conflict,
    JournalError,
    JournalForkedError,
    JournalFullError,
    JournalGapError,
    JournalUnavailableError,
    Raw,
)
from tidegate_events.journal.closing import Sealer, close, open_next
from tidegate_events.journal.generations import (
    Generation,
    generations,
    open_first,
    publish_head,
    trim,
)
from tidegate_events.journal.jetstream import JetStream
from tidegate_events.journal.nats import NatsJournal

from tests.events.journal.rolling import archive_closed, roll
from tests.events.writing import frame, read, take
from tests.support.nats import NatsServer

ONE = "tg.fact.gateway.g1"
TWO = "tg.fact.gateway.g2"
GENERATION_BYTES = 64 * 1024


@pytest.fixture
async def client(server: NatsServer) -> AsyncIterator[Client]:
    """Yield a connection to the server."""
    connected = await bus.connect(bus.BusSettings(url=server.url))
    yield connected
    await connected.close()


async def write(journal: NatsJournal, first: int, last: int, subject: str = ONE) -> None:
    """Append the frames `first` to `last` of the subject's writer."""
    for number in range(first, last + 1):
        answer = await journal.append(subject, frame(subject.rsplit(".", 1)[-1], number))
        assert isinstance(answer, Appended)
        assert not answer.duplicate


async def test_sequences_go_on_in_the_next_generation(client: Client, nats_journal: NatsJournal) -> None:
    await write(nats_journal, 1, 3)
    assert (await roll(client)).first_seq == 4
    assert await nats_journal.end() == 3
    await write(nats_journal, 4, 5)
    await write(nats_journal, 1, 1, TWO)
    await roll(client)
    await write(nats_journal, 6, 6)
    assert await nats_journal.end() == 7
    recorded = await read(NatsJournal(client), 0, 7)
    assert [r.seq for r in recorded] == [1, 2, 3, 4, 5, 6, 7]
    assert [r.subject for r in recorded] == [ONE] * 5 + [TWO, ONE]
    there = await generations(client)
    assert [(g.number, g.first_seq, g.last_seq, g.closed, g.live, g.limit_bytes) for g in there[:2]] == [
        (1, 1, 3, True, False, -1),
        (2, 4, 6, True, False, -1),
    ]
    assert (there[-1].number, there[-1].first_seq, there[-1].closed, there[-1].live) == (3, 7, False, True)
    assert there[-1].limit_bytes == 1024**2 > there[-1].used_bytes > 0


async def test_last_and_guards_hold_across_a_roll(client: Client, nats_journal: NatsJournal) -> None:
    await write(nats_journal, 1, 2)
    await write(nats_journal, 1, 1, TWO)
    await roll(client)
    last = await nats_journal.last(ONE)
    assert last is not None
    assert (last.seq, last.frame) == (2, frame("g1", 2))
    for journal in (nats_journal, NatsJournal(client)):
        assert await journal.append(ONE, frame("g1", 3), expected_last=1) == Conflict(1, 2)
        assert await journal.append(ONE, frame("g1", 3), expected_last=0) == Conflict(0, 2)
        assert await journal.append(ONE, frame("g1", 3), expected_last=3) == Conflict(3, 2)
    await roll(client)
    assert await nats_journal.append(ONE, frame("g1", 3), expected_last=2) == Appended(4)
    assert await nats_journal.append(ONE, frame("g1", 4), expected_last=2) == Conflict(2, 4)
    assert await nats_journal.append(ONE, frame("g1", 4), expected_last=4) == Appended(5)
    assert await nats_journal.append("tg.fact.gateway.g3", frame("g3", 1), expected_last=0) == Appended(6)
    assert await nats_journal.end() == 6


async def test_a_deposed_leader_is_refused_across_a_roll(client: Client, nats_journal: NatsJournal) -> None:
    deposed, leading = NatsJournal(client), nats_journal
    assert await deposed.append("tg.decision", frame("a", 1), expected_last=0) == Appended(1)
    assert await leading.append("tg.decision", frame("b", 1), expected_last=1) == Appended(2)
    await roll(client)
    assert await deposed.append("tg.decision", frame("a", 2), expected_last=1) == Conflict(1, 2)
    assert await leading.append("tg.decision", frame("b", 2), expected_last=2) == Appended(3)
    await roll(client)
    assert await deposed.append("tg.decision", frame("a", 2), expected_last=1) == Conflict(1, 3)
    assert await deposed.append("tg.decision", frame("a", 2), expected_last=2) == Conflict(2, 3)
    assert [r.frame.writer.instance for r in await read(leading, 0, 3)] == ["a", "b", "b"]


@pytest.mark.parametrize("guard", [None, 1])
async def test_a_frame_in_a_closed_generation_is_not_written_again(
    client: Client, nats_journal: NatsJournal, guard: int | None
) -> None:
    await write(nats_journal, 1, 1)
    assert await nats_journal.append(ONE, frame("g1", 2), expected_last=guard) == Appended(2)
    await roll(client)
    for journal in (nats_journal, NatsJournal(client)):
        assert await journal.append(ONE, frame("g1", 2), expected_last=guard) == Appended(2, duplicate=True)
    assert await nats_journal.end() == 2


async def test_who_waits_at_the_end_of_a_generation_moves_on_by_the_advisory(
    client: Client, nats_journal: NatsJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Then only the advisory can make it look.
    monkeypatch.setattr(nats_read, "HEARTBEATS_BETWEEN_LOOKS", 10_000)
    await write(nats_journal, 1, 3)
    follower = asyncio.create_task(take(NatsJournal(client), 0, 9))
    caught_up = asyncio.create_task(take(NatsJournal(client), 0, 3))
    await caught_up
    for first in (4, 7):
        await roll(client)
        await write(nats_journal, first, first + 2)
    assert [r.seq for r in await follower] == list(range(1, 10))


async def test_who_missed_the_advisory_looks_now_and_then(
    client: Client, nats_journal: NatsJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_read, "HEARTBEATS_BETWEEN_LOOKS", 1)
    subscribe = client.subscribe

    async def without_advisories(subject: str, *args: object, **options: object) -> object:
        return await subscribe(subject.replace("$JS.EVENT", "nowhere"), *args, **options)

    monkeypatch.setattr(client, "subscribe", without_advisories)
    await write(nats_journal, 1, 1)
    follower = asyncio.create_task(take(nats_journal, 0, 2))
    await asyncio.sleep(0.2)
    await roll(client)
    await write(nats_journal, 2, 2)
    assert [r.seq for r in await follower] == [1, 2]


async def test_writers_and_readers_do_not_notice_rolls(client: Client, nats_journal: NatsJournal) -> None:
    names = ("a", "b", "c")
    follower = asyncio.create_task(take(NatsJournal(client), 0, 300))

    async def guarded(name: str) -> None:
        journal, last = NatsJournal(client), 0
        for number in range(1, 101):
            answer = await journal.append(f"tg.fact.gateway.{name}", frame(name, number), expected_last=last)
            assert isinstance(answer, Appended), answer
            last = answer.seq

    async with asyncio.TaskGroup() as tasks:
        for name in names:
            tasks.create_task(guarded(name))
        for _ in range(4):
            await asyncio.sleep(0.05)
            await roll(client)
    recorded = await follower
    assert [r.seq for r in recorded] == list(range(1, 301))
    for name in names:
        assert [r.frame.writer.writer_seq for r in recorded if r.frame.writer.instance == name] == list(range(1, 101))


async def test_every_step_can_be_repeated_whatever_was_done_before(client: Client, nats_journal: NatsJournal) -> None:
    await write(nats_journal, 1, 2)
    with pytest.raises(JournalError, match="close it before"):
        await open_next(client, 1, max_bytes=1024**2)
    with pytest.raises(JournalError, match="must be closed"):
        await trim(client, 1)
    # Died after the subjects were taken away: nobody can append, and closing again goes on from there.
    answer = await client.request("$JS.API.STREAM.INFO.JOURNAL_1", b"", timeout=2)
    unhooked = {**msgspec.json.decode(answer.data)["config"], "subjects": ["tg.closed.1"]}
    await client.request("$JS.API.STREAM.UPDATE.JOURNAL_1", msgspec.json.encode(unhooked), timeout=2)
    appending = asyncio.create_task(nats_journal.append(ONE, frame("g1", 3)))
    closed = await close(client, 1)
    assert (closed.last_seq, closed.closed, closed.live) == (2, True, False)
    assert await close(client, 1) == closed
    # Died before the next one was opened: nothing opens the first one again, and the closed one is not trimmed.
    assert await open_first(client, max_bytes=1024**2) == closed
    with pytest.raises(JournalError, match="the next one open"):
        await trim(client, 1)
    opened = await open_next(client, 1, max_bytes=1024**2)
    assert await appending == Appended(3)
    again = await open_next(client, 1, max_bytes=2 * 1024**2)
    assert (again.first_seq, again.limit_bytes) == (opened.first_seq, opened.limit_bytes)
    await roll(client)
    with pytest.raises(JournalError, match="is older and goes first"):
        await trim(client, 2)
    await trim(client, 1)
    await trim(client, 1)
    assert [g.number for g in await generations(client)] == [2, 3]
    assert await close(client, 2) == (await generations(client))[0]
    with pytest.raises(JournalError, match="there is no generation JOURNAL_1"):
        await close(client, 1)


async def test_an_empty_generation_keeps_its_place_over_a_kill(
    server: NatsServer, client: Client, nats_journal: NatsJournal
) -> None:
    await write(nats_journal, 1, 3)
    await roll(client)
    await server.restart()
    assert await nats_journal.end() == 3
    await roll(client)
    await write(nats_journal, 4, 4)
    assert [r.seq for r in await read(NatsJournal(client), 0, 4)] == [1, 2, 3, 4]


async def test_nothing_goes_into_a_sealed_generation(client: Client, nats_journal: NatsJournal) -> None:
    await write(nats_journal, 1, 1)
    sealer = Sealer(client)
    assert await sealer.seal(1) is False, "it is not closed"
    await roll(client)
    assert [await sealer.seal(1) for _ in range(2)] == [True, True], "the only copy is whole"
    assert [g.sealed for g in await generations(client)] == [True, False]
    assert await close(client, 1) == (await generations(client))[0]
    answer = msgspec.json.decode((await client.request("tg.closed.1", b"x", timeout=2)).data)
    assert answer["error"]["description"] == "invalid operation on sealed stream"
    opened = {"name": "JOURNAL_1", "subjects": ["tg.other"], "max_bytes": -1}
    answer = msgspec.json.decode(
        (await client.request("$JS.API.STREAM.UPDATE.JOURNAL_1", msgspec.json.encode(opened), timeout=2)).data
    )
    assert "error" in answer
    assert (await generations(client))[0].last_seq == 1
    await trim(client, 1)
    assert await sealer.seal(1) is False, "it is gone"


async def test_the_end_of_a_full_generation_is_found(client: Client, nats_journal: NatsJournal) -> None:
    await write(nats_journal, 1, 1)
    await roll(client, max_bytes=GENERATION_BYTES)
    with pytest.raises(JournalFullError):
        await write(nats_journal, 2, 1000)
    end = await nats_journal.end()
    assert (await roll(client)).first_seq == end + 1


async def test_a_closed_generation_that_goes_beyond_its_end_is_a_fork(
    client: Client, nats_journal: NatsJournal
) -> None:
    """As if a server that did not know of the closing had taken a frame: nobody takes it for history."""
    await write(nats_journal, 1, 2)
    await write(nats_journal, 1, 1, TWO)
    before = NatsJournal(client)
    assert await before.end() == 3
    await roll(client)
    await write(nats_journal, 3, 3)
    config = msgspec.json.decode((await client.request("$JS.API.STREAM.INFO.JOURNAL_1", b"", timeout=2)).data)["config"]
    other = msgspec.json.encode({**config, "subjects": ["tg.closed.1", "tg.fact.gateway.g2"]})
    live = msgspec.json.decode((await client.request("$JS.API.STREAM.INFO.JOURNAL_2", b"", timeout=2)).data)["config"]
    apart = msgspec.json.encode({**live, "subjects": ["tg.decision", "tg.fact.gateway.g1"]})
    for name, body in (("JOURNAL_2", apart), ("JOURNAL_1", other)):
        assert b"error" not in (await client.request(f"$JS.API.STREAM.UPDATE.{name}", body, timeout=2)).data
    await client.request(TWO, encode(frame("g2", 2)), timeout=2)
    for name, body in (("JOURNAL_1", config), ("JOURNAL_2", live)):
        await client.request(f"$JS.API.STREAM.UPDATE.{name}", msgspec.json.encode(body), timeout=2)
    there = await generations(client)
    assert [(g.last_seq, g.surplus) for g in there] == [(3, 1), (4, 0)]
    with pytest.raises(JournalForkedError, match="JOURNAL_1 was closed and holds sequences up to 4"):
        await open_next(client, 1, max_bytes=1024**2)
    with pytest.raises(JournalForkedError, match="the next generation begins at 4"):
        await trim(client, 1)
    for journal in (before, NatsJournal(client)):
        assert [(r.seq, r.subject) for r in await read(journal, 0, 4)] == [(1, ONE), (2, ONE), (3, TWO), (4, ONE)]
        with pytest.raises(JournalUnavailableError, match="forked"):
            await journal.last(TWO)


async def test_what_is_trimmed_without_an_archive_is_a_gap(client: Client, nats_journal: NatsJournal) -> None:
    await write(nats_journal, 1, 2)
    await roll(client)
    await write(nats_journal, 3, 3)
    await trim(client, 1)
    with pytest.raises(JournalGapError, match="TIDEGATE_JOURNAL_ARCHIVE_DIR"):
        await read(nats_journal, 0, 3)
    assert [r.seq for r in await read(nats_journal, 2, 3)] == [3]


async def test_the_last_frame_of_a_subject_survives_its_generation(client: Client, nats_journal: NatsJournal) -> None:
    await write(nats_journal, 1, 3)
    await write(nats_journal, 1, 1, TWO)
    await roll(client)
    await write(nats_journal, 2, 2, TWO)
    await roll(client)
    await trim(client, 1)
    await trim(client, 2)
    journal = NatsJournal(client)
    for subject, name, seq, number in ((ONE, "g1", 3, 3), (TWO, "g2", 5, 2)):
        last = await journal.last(subject)
        assert last is not None
        assert (last.seq, last.subject, last.frame) == (seq, subject, frame(name, number))
    assert await journal.append(ONE, frame("g1", 4), expected_last=2) == Conflict(2, 3)
    assert await journal.append(ONE, frame("g1", 3), expected_last=3) == Appended(3, duplicate=True)
    assert await journal.append(ONE, frame("g1", 4), expected_last=3) == Appended(6)
    assert await journal.last("tg.fact.gateway.g3") is None


async def test_a_follower_goes_from_the_archive_to_the_bus(
    client: Client, nats_journal: NatsJournal, tmp_path: Path
) -> None:
    archive = ArchiveDirectory(tmp_path / "archive")
    await write(nats_journal, 1, 5)
    await roll(client)
    await write(nats_journal, 6, 9)
    await roll(client)
    await archive_closed(client, archive, tmp_path)
    journal = NatsJournal(client, archive)
    follower = asyncio.create_task(take(journal, 0, 12))
    await write(nats_journal, 10, 12)
    assert [r.seq for r in await follower] == list(range(1, 13))
    assert [r.seq for r in await read(journal, 3, 8)] == [4, 5, 6, 7, 8]
    async with aclosing(journal.read_raw(4, 10)) as messages:
        assert [raw.seq async for raw in messages] == [5, 6, 7, 8, 9, 10]


async def test_ten_times_the_quota_is_written_and_read_back(
    client: Client, nats_journal: NatsJournal, tmp_path: Path
) -> None:
    await roll(client, max_bytes=GENERATION_BYTES)
    archive = ArchiveDirectory(tmp_path / "archive")
    written_bytes = 0
    done = asyncio.Event()

    async def one_writer(name: str) -> None:
        nonlocal written_bytes
        journal, number = NatsJournal(client), 0
        while written_bytes < 10 * GENERATION_BYTES:
            number += 1
            one = frame(name, number, padding="x" * 2000)
            while True:
                try:
                    assert isinstance(await journal.append(f"tg.fact.gateway.{name}", one), Appended)
                    break
                except JournalFullError:  # the roll was late: refused, and nothing was written
                    await asyncio.sleep(0.02)
            written_bytes += 2000
        written[name] = number

    async def keep() -> None:
        while not done.is_set():
            newest: Generation = (await generations(client))[-1]
            if newest.used_bytes > GENERATION_BYTES // 2:
                await roll(client, max_bytes=GENERATION_BYTES)
                await archive_closed(client, archive, tmp_path)
            await asyncio.sleep(0.01)

    written: dict[str, int] = {}
    async with asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(keep())
        async with asyncio.TaskGroup() as writers:
            for name in ("a", "b"):
                writers.create_task(one_writer(name))
        done.set()
        await keeping
    journal = NatsJournal(client, archive)
    end = await journal.end()
    assert end == sum(written.values())
    assert len(archive.list()) > 10
    recorded = await read(journal, 0, end)
    assert [r.seq for r in recorded] == list(range(1, end + 1))
    for name, count in written.items():
        own = [r.frame.writer.writer_seq for r in recorded if r.frame.writer.instance == name]
        assert own == list(range(1, count + 1))


async def test_a_keeper_that_was_held_up_keeps_no_older_head_over_a_newer_one(
    client: Client, nats_journal: NatsJournal
) -> None:
    """Two keepers by mistake: one stops in the midst of trimming, the other goes on for two generations."""
    await write(nats_journal, 1, 2)
    late = Raw(2, ONE, encode(frame("g1", 2)))
    for number in (1, 2):
        await roll(client)
        await trim(client, number)
        await write(nats_journal, number + 2, number + 2)
    await roll(client)
    await trim(client, 3)
    await publish_head(client, JetStream(client), late)
    assert await NatsJournal(client).append(ONE, frame("g1", 9), expected_last=2) == Conflict(2, 4)
    assert await NatsJournal(client).append(ONE, frame("g1", 9), expected_last=4) == Appended(5)
