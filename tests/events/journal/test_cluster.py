"""The journal on three servers: the port's whole contract, and nothing lost or doubled when one of them dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from nats.aio.client import Client
from tidegate_events import bus
from tidegate_events.journal import closing
from tidegate_events.journal.base import Appended, Conflict, JournalFullError, JournalUnavailableError
from tidegate_events.journal.closing import Sealer, close, open_next
from tidegate_events.journal.generations import generations
from tidegate_events.journal.health import restart_is_due
from tidegate_events.journal.nats import NatsJournal
from tidegate_events.journal.patience import patiently

from tests.events import test_journal_contract as contract
from tests.events.journal.rolling import roll
from tests.events.writing import frame, read, take
from tests.support.nats_cluster import NAMES, NatsCluster

STREAM_BYTES_MAX = 16 * 1024**2
PLACED_SECONDS_MAX = 30.0
ONE = "tg.fact.gateway.g1"
WRITES = 150


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[NatsCluster]:
    """Yield three running servers, which the module's tests share: each brings a journal of its own."""
    made = NatsCluster(tmp_path_factory.mktemp("cluster"))
    try:
        asyncio.run(made.start())
        yield made
    finally:
        made.stop()


@pytest.fixture
async def client(cluster: NatsCluster) -> AsyncIterator[Client]:
    """Yield a connection to a cluster without streams."""
    await cluster.ready()
    connected = await bus.connect(cluster.settings)
    yield connected
    listed = msgspec.json.decode((await connected.request("$JS.API.STREAM.NAMES", b"", timeout=5)).data)
    for name in listed["streams"] or ():
        await connected.request(f"$JS.API.STREAM.DELETE.{name}", b"", timeout=5)
    await connected.close()


@pytest.fixture
async def journal(client: Client) -> NatsJournal:
    """Return an empty journal with three copies."""
    made = NatsJournal(client)
    # Each server is healthy before the one that places streams has heard all of them.
    await patiently(
        lambda: made.ensure_stream(max_bytes=STREAM_BYTES_MAX, replicas=3), PLACED_SECONDS_MAX, lambda _: None
    )
    return made


async def leader_of(client: Client, stream: str) -> str:
    """Return the server that leads the stream, as `n1`."""
    info = await client.jetstream().stream_info(stream)
    assert info.cluster is not None
    assert info.cluster.leader is not None
    return info.cluster.leader.removeprefix("tidegate-")


CONTRACT = [getattr(contract, name) for name in sorted(vars(contract)) if name.startswith("test_")]


@pytest.mark.parametrize("tried", CONTRACT, ids=lambda tried: tried.__name__)
async def test_the_contract_holds(journal: NatsJournal, tried: object) -> None:
    marks = getattr(tried, "pytestmark", [])
    if marks:
        (guards,) = marks
        guard = guards.args[1][-1]
        await tried(journal, guard)  # type: ignore[operator]
    else:
        await tried(journal)  # type: ignore[operator]


async def test_a_failed_guard_is_a_conflict_whichever_code_says_so(client: Client, journal: NatsJournal) -> None:
    await journal.append("tg.decision", frame("a", 1), expected_last=0)
    rivals = [NatsJournal(client) for _ in range(8)]
    answers = await asyncio.gather(
        *(rival.append("tg.decision", frame(f"r{n}", 1), expected_last=1) for n, rival in enumerate(rivals))
    )
    assert sorted(type(answer).__name__ for answer in answers) == ["Appended", *["Conflict"] * 7]
    assert {answer.actual for answer in answers if isinstance(answer, Conflict)} == {2}


async def test_nothing_is_lost_or_doubled_when_the_leader_is_killed(
    cluster: NatsCluster, client: Client, journal: NatsJournal
) -> None:
    follower = asyncio.create_task(take(NatsJournal(client), 0, 3 * WRITES))
    half = asyncio.Event()

    async def write(name: str, guarded: bool) -> list[int]:
        own, last, given = NatsJournal(client), 0, []
        for number in range(1, WRITES + 1):
            answer = await own.append(
                f"tg.fact.gateway.{name}", frame(name, number), expected_last=last if guarded else None
            )
            assert isinstance(answer, Appended), answer
            last = answer.seq
            given.append(last)
            if number == WRITES // 3:
                half.set()
        return given

    async with asyncio.TaskGroup() as tasks:
        writing = {name: tasks.create_task(write(name, name != "free")) for name in ("a", "b", "free")}
        await half.wait()
        killed = await leader_of(client, "JOURNAL_1")
        cluster.kill9(killed)
        await asyncio.sleep(1)
        cluster.start_one(killed)
    recorded = await follower
    assert [r.seq for r in recorded] == list(range(1, 3 * WRITES + 1))
    for name, task in writing.items():
        own = [(r.frame.writer.writer_seq, r.seq) for r in recorded if r.frame.writer.instance == name]
        assert own == list(enumerate(task.result(), start=1))


async def test_what_was_acknowledged_is_there_after_all_servers_were_killed_at_once(
    cluster: NatsCluster, client: Client, journal: NatsJournal
) -> None:
    given = [await journal.append(ONE, frame("g1", number)) for number in range(1, WRITES + 1)]
    assert given == [Appended(number) for number in range(1, WRITES + 1)]
    info = await client.jetstream().stream_info("JOURNAL_1")
    # Whoever compresses the block that still grows cannot read it after this: then every copy is gone.
    assert info.config.compression in {None, "none"}
    for name in NAMES:
        cluster.kill9(name)
    for name in NAMES:
        cluster.start_one(name)
    await cluster.ready()
    recorded = await take(NatsJournal(client), 0, WRITES)
    assert [r.frame.writer.writer_seq for r in recorded] == list(range(1, WRITES + 1))
    assert await journal.append(ONE, frame("g1", WRITES + 1)) == Appended(WRITES + 1)


async def test_generations_roll_and_are_read_whoever_leads_them(
    cluster: NatsCluster, client: Client, journal: NatsJournal
) -> None:
    follower = asyncio.create_task(take(NatsJournal(client), 0, 60))
    last = 0
    for number in range(1, 61):
        answer = await journal.append("tg.decision", frame("a", number), expected_last=last)
        assert isinstance(answer, Appended), answer
        last = answer.seq
        if number in {20, 40}:
            await roll(client, replicas=3)
    assert [r.frame.writer.writer_seq for r in await follower] == list(range(1, 61))
    assert await journal.append("tg.decision", frame("b", 1), expected_last=20) == Conflict(20, 60)
    cluster.kill9(await leader_of(client, "JOURNAL_1"))
    assert [r.seq for r in await read(NatsJournal(client), 0, 60)] == list(range(1, 61))
    for name in set(NAMES) - cluster.running:
        cluster.start_one(name)
    await cluster.ready()
    assert [(g.first_seq, g.last_seq) for g in await generations(client)] == [(1, 20), (21, 40), (41, 60)]


async def test_a_server_that_comes_back_right_after_a_roll_takes_nothing_with_it(
    cluster: NatsCluster, client: Client, journal: NatsJournal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It learns of the new generation before it learns of the closing, and refuses it; nothing is lost by that."""
    monkeypatch.setattr(closing, "WHOLE_SECONDS", 1.0)
    assert await journal.append(ONE, frame("g1", 1)) == Appended(1)
    leader = await leader_of(client, "JOURNAL_1")
    away = next(name for name in NAMES if name != leader)
    cluster.kill9(away)
    assert await journal.append(ONE, frame("g1", 2), expected_last=1) == Appended(2)
    await until_rolled(client, 1)
    assert await journal.append(ONE, frame("g1", 3), expected_last=2) == Appended(3)
    sealer = Sealer(client)
    assert not await sealer.seal(1)
    cluster.start_one(away)
    await until_copied(cluster, away, "JOURNAL_1", (1, 2, 2))
    await until_sealed(sealer, 1)
    assert await journal.append(ONE, frame("g1", 4), expected_last=3) == Appended(4)
    if await restart_is_due(cluster.monitor_url(away), tmp_path):
        cluster.kill9(away)
        cluster.start_one(away)
    await cluster.ready()
    for name in NAMES:
        await until_copied(cluster, name, "JOURNAL_1", (1, 2, 2))
        await until_copied(cluster, name, "JOURNAL_2", (3, 4, 2))
    assert [r.frame.writer.writer_seq for r in await read(journal, 0, 4)] == [1, 2, 3, 4]
    assert [g.sealed for g in await generations(client)] == [True, False]


async def test_the_end_counts_what_is_under_way_and_is_found_where_there_is_no_room(
    client: Client, journal: NatsJournal
) -> None:
    """Many appends at once while the generation is closed: each is in one of the two, and none is lost."""
    await roll(client, max_bytes=64 * 1024, replicas=3)

    async def write(name: str) -> list[int]:
        own, given = NatsJournal(client), []
        for number in range(1, 200):
            try:
                answer = await own.append(f"tg.fact.gateway.{name}", frame(name, number, padding="x" * 500))
            except JournalFullError:
                break
            assert isinstance(answer, Appended)
            given.append(answer.seq)
        return given

    for again in (False, True):  # the first is rolled while it takes appends, the second when it is full
        writing = [asyncio.create_task(write(f"w{number}-{again}")) for number in range(8)]
        if not again:
            await asyncio.sleep(0.05)
            await roll(client, max_bytes=64 * 1024, replicas=3)
        given = [seq for seqs in await asyncio.gather(*writing) for seq in seqs]
        there = await generations(client)
        assert sorted(given)[-1] == there[-1].last_seq
        await roll(client, max_bytes=64 * 1024, replicas=3)
        assert [g.surplus for g in await generations(client)] == [0] * (len(there) + 1)
    end = await journal.end()
    assert [r.seq for r in await read(journal, 0, end)] == list(range(1, end + 1))


async def until_rolled(client: Client, number: int) -> None:
    """Roll as a keeper does: what has no leader for some seconds is tried again."""
    async with asyncio.timeout(60):
        while True:
            try:
                await close(client, number)
                await open_next(client, number, max_bytes=STREAM_BYTES_MAX, replicas=3)
                await generations(client)
                return
            except JournalUnavailableError:
                await asyncio.sleep(0.2)


async def until_copied(cluster: NatsCluster, name: str, stream: str, holds: tuple[int, int, int]) -> None:
    """Wait until a server's own copy holds that: first and last sequence, and how many."""
    async with asyncio.timeout(60):
        while await cluster.copy_of(name, stream) != holds:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.1)


async def until_sealed(sealer: Sealer, number: int) -> None:
    """Try to seal until it is done."""
    async with asyncio.timeout(60):
        while not await sealer.seal(number):  # noqa: ASYNC110 - nobody says when it is time
            await asyncio.sleep(0.2)
