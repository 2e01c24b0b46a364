"""What only the real journal can show: it survives its server, refuses to forget, and says when it is full."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import nats
import nats.errors
import nats.js.errors
import pytest
from nats.aio.msg import Msg
from tidegate_events import bus
from tidegate_events.journal.base import Appended, JournalFullError, JournalGapError
from tidegate_events.journal.generations import journal_stream, stream_config
from tidegate_events.journal.nats import NatsJournal

from tests.events.writing import frame, read, take
from tests.support.nats import NatsServer

ONE = "tg.fact.gateway.g1"
STREAM = journal_stream(1)


async def test_follow_resumes_across_kill9_without_gap_or_repeat(server: NatsServer, nats_journal: NatsJournal) -> None:
    follower = asyncio.create_task(take(nats_journal, 0, 40))
    for number in range(1, 41):
        if number in {11, 31}:
            server.kill9()
            await server.start()
        assert isinstance(await nats_journal.append(ONE, frame("g1", number)), Appended)
    taken = await follower
    assert [r.seq for r in taken] == list(range(1, 41))
    assert [r.frame.writer.writer_seq for r in taken] == list(range(1, 41))


@pytest.mark.parametrize("lost", [{1}, {3}, {2, 3}, {6}])
async def test_what_is_lost_on_its_way_is_delivered_again(
    server: NatsServer, nats_journal: NatsJournal, lost: set[int]
) -> None:
    client = await bus.connect(bus.BusSettings(url=server.url))
    subscribe, left = client.subscribe, set(lost)

    async def losing(subject: str, *, cb: Any) -> Any:
        async def pass_on(message: Msg) -> None:
            if not (message.reply.startswith("$JS.ACK.") and message.metadata.sequence.stream in left):
                await cb(message)
            else:
                left.remove(message.metadata.sequence.stream)

        return await subscribe(subject, cb=pass_on)

    client.subscribe = losing
    for number in range(1, 7):
        await nats_journal.append(ONE, frame("g1", number))
    async with asyncio.timeout(10):
        assert [r.seq for r in await take(NatsJournal(client), 0, 6)] == [1, 2, 3, 4, 5, 6]
    assert not left
    await client.close()


async def test_what_a_consumer_does_not_deliver_though_it_beats_is_read_from_the_leader(
    server: NatsServer, nats_journal: NatsJournal
) -> None:
    await nats_journal.append(ONE, frame("g1", 1))
    following = nats_journal.follow(0)
    assert (await anext(following)).seq == 1
    client = await nats.connect(server.url)
    # As one whose server has an old copy of the stream, and does not know it.
    (consumer,) = await client.jetstream().consumers_info(STREAM)
    for_ever = msgspec.json.encode({"pause_until": "2999-01-01T00:00:00Z"})
    answer = await client.request(f"$JS.API.CONSUMER.PAUSE.{STREAM}.{consumer.name}", for_ever)
    assert msgspec.json.decode(answer.data)["paused"]
    for number in (2, 3, 4):
        await nats_journal.append(ONE, frame("g1", number))
    async with asyncio.timeout(40):
        assert [(await anext(following)).seq for _ in range(3)] == [2, 3, 4]
        await nats_journal.append(ONE, frame("g1", 5))
        assert (await anext(following)).seq == 5
    (another,) = {each.name for each in await client.jetstream().consumers_info(STREAM)} - {consumer.name}
    assert another
    await client.close()
    await following.aclose()


@pytest.mark.parametrize("guard", [None, 1])
async def test_an_append_during_an_outage_is_settled_and_written_once(
    server: NatsServer, nats_journal: NatsJournal, guard: int | None
) -> None:
    await nats_journal.append(ONE, frame("g1", 1))
    server.kill9()
    appending = asyncio.create_task(nats_journal.append(ONE, frame("g1", 2), expected_last=guard))
    # Longer than one try, so that the append is retried while nobody listens.
    await asyncio.sleep(3)
    await server.start()
    answer = await appending
    assert isinstance(answer, Appended)
    assert answer.seq == 2
    assert await nats_journal.append(ONE, frame("g1", 3)) == Appended(3)
    assert [r.frame.writer.writer_seq for r in await read(nats_journal, 0, 3)] == [1, 2, 3]


async def test_appends_around_kills_are_each_written_once(server: NatsServer, nats_journal: NatsJournal) -> None:
    async def write() -> None:
        last = 0
        for number in range(1, 201):
            answer = await nats_journal.append("tg.decision", frame("s1", number), expected_last=last)
            assert isinstance(answer, Appended), answer
            last = answer.seq

    writing = asyncio.create_task(write())
    for _ in range(3):
        await asyncio.sleep(0.15)
        await server.restart()
    await writing
    recorded = await read(nats_journal, 0, await nats_journal.end())
    assert [r.frame.writer.writer_seq for r in recorded] == list(range(1, 201))


async def test_what_was_acknowledged_is_there_after_kill9(server: NatsServer, nats_journal: NatsJournal) -> None:
    for number in range(1, 6):
        await nats_journal.append(ONE, frame("g1", number))
    await server.restart()
    assert [r.seq for r in await take(nats_journal, 0, 5)] == [1, 2, 3, 4, 5]
    assert await nats_journal.append(ONE, frame("g1", 5)) == Appended(5, duplicate=True)


async def test_nothing_can_be_deleted_or_purged(server: NatsServer, nats_journal: NatsJournal) -> None:
    await nats_journal.append(ONE, frame("g1", 1))
    client = await nats.connect(server.url)
    stream = client.jetstream()
    with pytest.raises(nats.js.errors.APIError, match="message delete not permitted"):
        await stream.delete_msg(STREAM, 1)
    with pytest.raises(nats.js.errors.APIError, match="purge not permitted"):
        await stream.purge_stream(STREAM)
    softer = {**stream_config(max_bytes=64 * 1024 * 1024), "deny_delete": False, "deny_purge": False}
    answer = await client.request(f"$JS.API.STREAM.UPDATE.{STREAM}", msgspec.json.encode(softer))
    assert "can not cancel deny" in msgspec.json.decode(answer.data)["error"]["description"]
    await client.close()
    assert [r.seq for r in await read(nats_journal, 0, 1)] == [1]


async def _append_many(journal: NatsJournal, count: int) -> None:
    for number in range(1, count + 1):
        assert await journal.append(ONE, frame("g1", number, padding="x" * 700)) == Appended(number)


async def test_a_full_journal_refuses_and_stays_readable(server: NatsServer) -> None:
    client = await bus.connect(bus.BusSettings(url=server.url))
    journal = NatsJournal(client)
    await journal.ensure_stream(max_bytes=8192)
    with pytest.raises(JournalFullError):
        await _append_many(journal, 1000)
    written = await journal.end()
    assert 1 < written < 1000
    assert [r.seq for r in await read(journal, 0, written)] == list(range(1, written + 1))
    with pytest.raises(JournalFullError):
        await journal.append(ONE, frame("g1", 5000, padding="x" * 700), expected_last=written)
    assert await journal.end() == written
    await client.close()


async def test_ensure_stream_leaves_an_existing_one_as_it_is(nats_journal: NatsJournal) -> None:
    await nats_journal.append(ONE, frame("g1", 1))
    await nats_journal.ensure_stream(max_bytes=1024)
    assert await nats_journal.append(ONE, frame("g1", 2, padding="x" * 4000)) == Appended(2)


async def test_a_missing_sequence_stops_the_reader(server: NatsServer) -> None:
    client = await bus.connect(bus.BusSettings(url=server.url))
    loose = {**stream_config(max_bytes=64 * 1024 * 1024), "deny_delete": False, "deny_purge": False}
    await client.request(f"$JS.API.STREAM.CREATE.{STREAM}", msgspec.json.encode(loose))
    journal = NatsJournal(client)
    for number in range(1, 5):
        await journal.append(ONE, frame("g1", number))
    await client.jetstream().delete_msg(STREAM, 1)
    with pytest.raises(JournalGapError):
        await take(journal, 0, 1)
    await client.jetstream().delete_msg(STREAM, 3)
    with pytest.raises(JournalGapError):
        await take(journal, 1, 2)
    await client.close()


async def test_connecting_where_nobody_listens_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus, "CONNECT_TRIES_MAX", 2)
    with pytest.raises(bus.BusUnreachableError, match="after 2 tries"):
        await bus.connect(bus.BusSettings(url=NatsServer(tmp_path).url))


async def test_a_command_is_told_soon_and_once_that_nobody_listens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(bus.BusUnreachableError, match="after 3 tries: ConnectionRefusedError"):
        await bus.connect(bus.BusSettings(url=NatsServer(tmp_path).url), bus.COMMAND_TRIES_MAX)
    assert "bus_error" not in "".join(capsys.readouterr())
