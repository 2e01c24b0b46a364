"""The keeper saves states, opens generations in time, archives and proves them, and trims only then."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from structlog.testing import capture_logs
from tidegate_events.journal.archive import ArchiveDirectory, inspect, read_snapshot
from tidegate_events.journal.base import JournalError, JournalGapError, JournalUnavailableError, Raw
from tidegate_events.journal.chain import ChainDigest
from tidegate_events.journal.closing import close, open_next
from tidegate_events.journal.generations import generations
from tidegate_events.journal.nats import NatsJournal
from tidegate_scheduler.history import verify
from tidegate_scheduler.keeper.settings import CLOSED_MAX
from tidegate_scheduler.keeper.shell import HistoryForkedError, Keeper
from tidegate_scheduler.keeper.voice import DisplacedError
from tidegate_scheduler.snapshot import decode_snapshot
from tidegate_scheduler.snapshot_store import BUCKET, SnapshotStore, snapshot_name
from tidegate_scheduler.start import load_state

from tests.scheduler.keeper.bench import GENERATION_BYTES, PADDING_BYTES, History, keeper, result, settings

TO_ROLL = GENERATION_BYTES * 75 // 100 // PADDING_BYTES  # frames that take a generation over 70% of its bytes


def put_in_the_way(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("a file where a directory should be")


def clear(path: Path) -> None:
    path.unlink()


async def work(made: Keeper, times: int = 1) -> None:
    for _ in range(times):
        await made.keep()
        await made.archive()


async def test_a_state_is_saved_every_so_many_events(client: Client, history: History, archive_dir: Path) -> None:
    made = keeper(client, settings(archive_dir, snapshot_events=10, snapshots_kept=2))
    await made.begin()
    await made.keep()
    store = SnapshotStore(client)
    assert await store.kept() == [], "three events are too few"
    saved = []
    for _ in range(4):
        await history.run_a_job()
        await history.run_a_job()
        await made.keep()
        saved.append(await history.journal.end())
    assert [kept.info.seq for kept in await store.kept()] == saved[-2:]
    state = await load_state(client)
    assert (state.seq, state.digest()) == (history.state.seq, history.state.digest())
    newest = await store.find()
    assert newest is not None
    chain = ChainDigest()
    async for raw in history.journal.read_raw(0, saved[-1]):
        chain.add(raw)
    assert newest.info.chain == chain.text()


async def test_a_generation_ends_before_it_is_full(client: Client, history: History, archive_dir: Path) -> None:
    made = keeper(client, settings(archive_dir))
    await made.begin()
    await history.run_a_job()
    await work(made)
    assert [each.number for each in await generations(client)] == [1]
    await history.pad(TO_ROLL)
    with capture_logs() as logs:
        await work(made, 2)
    rolled = next(line for line in logs if line["event"] == "journal_rolled")
    assert rolled["generation"] == 2
    (live,) = await generations(client)
    assert (live.number, live.live, live.first_seq) == (2, True, len(history.acknowledged) + 1)
    await history.run_a_job()
    found = await result(client, archive_dir)
    ((generation, first_seq, frames, digest, snapshot, state_digest),) = found.opened
    assert (generation, first_seq, frames) == (2, live.first_seq, live.first_seq - 1)
    assert found.archived == ((1, frames, digest, "", False),)
    assert snapshot == snapshot_name(live.first_seq - 1)
    saved = decode_snapshot(await SnapshotStore(client).load(snapshot))
    assert saved.digest() == state_digest
    assert found.state_digest == history.state.digest()


async def test_generations_are_chained_and_each_file_proves_itself(
    client: Client, history: History, archive_dir: Path
) -> None:
    made = keeper(client, settings(archive_dir))
    await made.begin()
    for _ in range(3):
        await history.run_a_job()
        await history.pad(TO_ROLL)
        await work(made, 2)
    await history.run_a_job()
    found = await result(client, archive_dir)
    assert [number for number, *_ in found.archived] == [1, 2, 3]
    assert [previous for *_, previous, _ in found.archived] == ["", found.archived[0][2], found.archived[1][2]]
    assert [each.number for each in await generations(client)] == [4]
    assert history.state.header.generation == 4
    whole = NatsJournal(client, ArchiveDirectory(archive_dir))
    report = await verify(whole.read(0, await whole.end()))
    assert report.ok, report.difference
    assert report.decisions_verified >= 8
    assert report.state_digest == history.state.digest()
    third = ArchiveDirectory(archive_dir).path(3)
    begins_with = read_snapshot(third)
    assert begins_with is not None
    state = decode_snapshot(begins_with)
    info = inspect(third)
    assert state.seq == info.first_seq - 1
    report = await verify(whole.read(state.seq, info.last_seq), state)
    assert report.ok, report.difference
    with pytest.raises(JournalGapError, match="TIDEGATE_JOURNAL_ARCHIVE_DIR"):
        await anext(NatsJournal(client).read(0, 1))


async def test_a_quiet_journal_is_not_read_at_every_look(client: Client, history: History, archive_dir: Path) -> None:
    made = keeper(client, settings(archive_dir, fold_seconds=3600.0))
    await made.begin()
    await made.keep()
    await history.pad(2)
    await made.keep()
    assert made._known.seq == 3
    await history.pad(TO_ROLL)
    await work(made, 2)
    assert [each.number for each in await generations(client)] == [2], "but it is when something depends on it"
    assert made._known.seq >= TO_ROLL


async def test_the_newest_closed_ones_stay_where_a_setting_says_so(
    client: Client, history: History, archive_dir: Path
) -> None:
    made = keeper(client, settings(archive_dir, sealed_kept=1))
    await made.begin()
    for _ in range(3):
        await history.pad(TO_ROLL)
        await work(made, 2)
    assert [each.number for each in await generations(client)] == [3, 4]
    assert len(ArchiveDirectory(archive_dir).list()) == 3


@pytest.mark.parametrize("opened", [False, True])
async def test_what_another_keeper_left_half_done_is_finished(
    client: Client, history: History, archive_dir: Path, opened: bool
) -> None:
    await history.pad(3)
    await close(client, 1)
    if opened:
        await open_next(client, 1, max_bytes=GENERATION_BYTES)
        await history.pad(2)
    made = keeper(client, settings(archive_dir))
    await made.begin()
    assert (await generations(client))[-1].live, "writers wait for that, so it comes before anything slow"
    await work(made, 2)
    found = await result(client, archive_dir)
    assert [generation for generation, *_ in found.opened] == [2]
    assert [number for number, *_ in found.streams] == [2]


async def test_what_was_said_is_not_said_again(client: Client, history: History, archive_dir: Path) -> None:
    first = keeper(client, settings(archive_dir))
    await first.begin()
    await history.pad(TO_ROLL)
    await first.keep()
    second = keeper(client, settings(archive_dir))
    await second.begin()
    await work(second, 2)
    assert [generation for generation, *_ in (await result(client, archive_dir)).opened] == [2]


async def test_without_any_snapshot_it_folds_the_archive_again(
    client: Client, history: History, archive_dir: Path
) -> None:
    made = keeper(client, settings(archive_dir))
    await made.begin()
    await history.pad(TO_ROLL)
    await work(made, 2)
    await client.jetstream().delete_stream(f"OBJ_{BUCKET}")
    again = keeper(client, settings(archive_dir))
    await again.begin()
    await history.pad(TO_ROLL)
    await work(again, 2)
    found = await result(client, archive_dir)
    assert [generation for generation, *_ in found.opened] == [2, 3]
    assert [has_snapshot for *_, has_snapshot in found.archived] == [False, False], "it was deleted with the bucket"


async def test_a_damaged_file_is_set_aside_and_written_again(
    client: Client, history: History, archive_dir: Path
) -> None:
    made = keeper(client, settings(archive_dir, sealed_kept=1))
    await made.begin()
    await history.pad(TO_ROLL)
    await work(made, 2)
    path = ArchiveDirectory(archive_dir).path(1)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    again = keeper(client, settings(archive_dir))
    await again.begin()
    with capture_logs() as logs:
        await work(again, 2)
    assert [line["event"] for line in logs if line["log_level"] == "error"] == ["archive_set_aside"]
    assert path.with_name("journal-1.tgj.damaged-1").read_bytes() == bytes(data)
    assert inspect(path).frames == len(history.acknowledged)
    assert [each.number for each in await generations(client)] == [2]


async def test_nothing_is_trimmed_for_the_archive_of_another_journal(
    client: Client, history: History, archive_dir: Path
) -> None:
    with ArchiveDirectory(archive_dir).begin(1, first_seq=1) as foreign:
        foreign.add(Raw(1, "tg.fact.gateway.g1", b"{}"))
    made = keeper(client, settings(archive_dir))
    await made.begin()
    await history.pad(TO_ROLL)
    await made.keep()
    await made.keep()
    with pytest.raises(JournalError, match="archive of another journal"):
        await made.archive()
    assert [each.number for each in await generations(client)] == [1, 2]


async def test_a_roll_waits_while_the_archive_takes_nothing(
    client: Client, history: History, archive_dir: Path
) -> None:
    put_in_the_way(archive_dir / "in-the-way")
    blocked = archive_dir / "in-the-way"
    made = keeper(client, settings(blocked))
    await made.begin()
    for _ in range(CLOSED_MAX):
        await history.pad(TO_ROLL)
        await made.keep()
        await made.keep()
        with pytest.raises(OSError, match="exists"):
            await made.archive()
    await history.pad(TO_ROLL)
    with capture_logs() as logs:
        await made.keep()
    assert "journal_not_closed" in [line["event"] for line in logs]
    assert len(await generations(client)) == CLOSED_MAX + 1
    clear(blocked)
    await made.archive()
    await work(made, 2)
    assert [each.number for each in await generations(client)] == [CLOSED_MAX + 2]


async def test_no_generation_is_closed_where_no_state_can_be_saved(
    client: Client, history: History, archive_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = keeper(client, settings(archive_dir))
    await made.begin()
    await history.pad(TO_ROLL)

    async def refuse(*_args: Any) -> None:
        raise JournalUnavailableError("no room for snapshots")

    with monkeypatch.context() as full:
        full.setattr(SnapshotStore, "save", refuse)
        with pytest.raises(JournalUnavailableError):
            await made.keep()
    assert [each.live for each in await generations(client)] == [True]
    await made.keep()
    assert len(await generations(client)) == 2


async def test_no_generation_is_closed_where_the_bus_has_no_room_for_the_next(
    client: Client, history: History, archive_dir: Path
) -> None:
    greedy = keeper(client, settings(archive_dir, generation_bytes=1 << 50))
    await greedy.begin()
    await history.pad(TO_ROLL)
    with pytest.raises(JournalError, match="no room for another"):
        await greedy.keep()
    assert [(each.number, each.live) for each in await generations(client)] == [(1, True)]
    await history.pad(1)
    modest = keeper(client, settings(archive_dir))
    await modest.begin()
    await work(modest, 2)
    assert [each.number for each in await generations(client)] == [2]


async def test_two_keepers_of_one_name_do_not_go_on_together(
    client: Client, history: History, archive_dir: Path
) -> None:
    first, second = keeper(client, settings(archive_dir)), keeper(client, settings(archive_dir))
    await first.begin()
    await second.begin()
    await history.pad(TO_ROLL)
    await work(first, 2)
    await history.pad(TO_ROLL)
    with pytest.raises(DisplacedError, match="one journal has one keeper"):
        await second.keep()


async def test_a_word_that_contradicts_what_was_folded_ends_it(
    client: Client, history: History, archive_dir: Path
) -> None:
    first, second = keeper(client, settings(archive_dir)), keeper(client, settings(archive_dir, instance="k2"))
    await history.pad(2)
    closed = await close(client, 1)
    await open_next(client, 1, max_bytes=GENERATION_BYTES)
    for each in (first, second):
        await each.begin()
    await second._fold_to(closed.last_seq)
    second._known.chain.add(Raw(1, "x", b""))  # it took something else for history
    await second._note_opening(closed)
    await first.keep()
    with pytest.raises(HistoryForkedError):
        await second.keep()


async def test_it_goes_on_when_the_bus_was_away(
    client: Client, history: History, archive_dir: Path, server: Any
) -> None:
    made = keeper(client, settings(archive_dir))
    serving = asyncio.create_task(made.run())
    try:
        await history.pad(2)
        await server.restart()
        async with asyncio.timeout(60):
            await history.pad(TO_ROLL)
            while not ArchiveDirectory(archive_dir).list() or len(await generations(client)) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    found = await result(client, archive_dir)
    assert [generation for generation, *_ in found.opened] == [2]
