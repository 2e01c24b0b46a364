"""Where snapshots are kept: the newest usable one is found, bad ones are set aside, and nothing half written shows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3
from nats.aio.client import Client
from nats.js.api import ObjectMeta
from nats.js.object_store import OBJ_DEFAULT_CHUNK_SIZE
from structlog.testing import capture_logs
from tidegate_events import bus
from tidegate_events.journal.base import Appended, JournalUnavailableError
from tidegate_events.journal.nats import NatsJournal
from tidegate_scheduler import snapshot
from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.snapshot_store import BUCKET, SnapshotStore, snapshot_name
from tidegate_scheduler.start import load_state
from tidegate_scheduler.state import Finished, State

from tests.support.cluster import Cluster, spec
from tests.support.nats import NatsServer

STREAM = f"OBJ_{BUCKET}"


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


@pytest.fixture
async def keeper(client: Client) -> SnapshotStore:
    store = SnapshotStore(client, keeps=True)
    await store.ensure(max_bytes=8 * 1024**2)
    return store


def states(*cuts: int) -> Iterator[State]:
    """Yield the state after each of `cuts` frames of one history."""
    cluster = Cluster()
    cluster.node("n1", 4000)
    while len(cluster.frames) < max(cuts):
        cluster.submit(spec(100))
    for cut in cuts:
        state = State()
        for recorded in cluster.frames[:cut]:
            evolve(state, recorded)
        yield state


async def save(store: SnapshotStore, *cuts: int) -> None:
    for state in states(*cuts):
        await store.save(state)


async def damage(client: Client, store: SnapshotStore, seq: int) -> None:
    """Put other bytes of the same length where the snapshot's are, as an honest store never would."""
    kept = next(each for each in await store.kept() if each.info.seq == seq)
    data = bytearray(await store.load(kept.name))
    data[-9] ^= 1
    description = msgspec.json.encode(kept.info).decode()
    await store._objects.put(kept.name, bytes(data), ObjectMeta(description=description))


async def test_the_newest_up_to_a_sequence_is_found(keeper: SnapshotStore, client: Client) -> None:
    await save(keeper, 5, 9, 14)
    reader = SnapshotStore(client)
    for at_most, seq in ((None, 14), (14, 14), (13, 9), (5, 5)):
        state = await reader.newest(at_most)
        assert state is not None
        assert state.seq == seq
        assert state.digest() == next(states(seq)).digest()
    assert await reader.newest(4) is None


async def test_a_large_one_comes_back_whole(keeper: SnapshotStore) -> None:
    state = next(states(5))
    for number in range(20_000):
        name = blake3(str(number).encode()).hexdigest()
        state.finished[name] = Finished(name, "t", "completed", 1)
        state.touch(f"finished/{name}")
    kept = await keeper.save(state)
    assert kept.size_bytes > 4 * OBJ_DEFAULT_CHUNK_SIZE
    again = await keeper.newest()
    assert again is not None
    assert again.digest() == state.digest()


async def test_saving_again_changes_nothing(keeper: SnapshotStore, client: Client) -> None:
    await save(keeper, 5, 5)
    assert [each.name for each in await keeper.kept()] == [snapshot_name(5)]
    assert len(await keeper._subjects("C")) == 1


async def test_a_bad_one_is_set_aside_and_an_older_one_used(keeper: SnapshotStore, client: Client) -> None:
    await save(keeper, 5, 9)
    await damage(client, keeper, 9)
    with capture_logs() as logs:
        state = await SnapshotStore(client).newest()
    assert state is not None
    assert state.seq == 5
    assert [line["snapshot"] for line in logs if line["event"] == "snapshot_set_aside"] == [snapshot_name(9)]
    assert not any(each.set_aside for each in await keeper.kept()), "only the keeper marks"
    await keeper.newest()
    marked = {each.info.seq: each.set_aside for each in await keeper.kept()}
    assert "digest" in marked[9]
    assert marked[5] == ""
    with capture_logs() as logs:
        assert (await SnapshotStore(client).newest()) is not None
    assert logs == [], "what is marked is not looked at again"
    assert await keeper.load(snapshot_name(9)), "and it is still there for whoever wants to know"


async def test_one_that_lost_a_part_is_set_aside(keeper: SnapshotStore, client: Client) -> None:
    await save(keeper, 5, 9)
    chunks = await client.jetstream().stream_info(STREAM, subjects_filter=f"$O.{BUCKET}.C.>")
    newest = await keeper._objects.get_info(snapshot_name(9))
    assert f"$O.{BUCKET}.C.{newest.nuid}" in (chunks.state.subjects or {})
    await client.jetstream().purge_stream(STREAM, subject=f"$O.{BUCKET}.C.{newest.nuid}")
    state = await keeper.newest()
    assert state is not None
    assert state.seq == 5
    assert [bool(each.set_aside) for each in await keeper.kept()] == [False, True]


async def test_one_by_other_code_is_passed_over_and_left_to_it(
    keeper: SnapshotStore, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await save(keeper, 5)
    with monkeypatch.context() as newer:
        newer.setattr(snapshot, "CORE_VERSION", "9.9")
        await save(keeper, 9)
    with capture_logs() as logs:
        state = await keeper.newest()
    assert state is not None
    assert state.seq == 5
    assert [line["event"] for line in logs] == ["snapshot_of_other_code"]
    monkeypatch.setattr(snapshot, "CORE_VERSION", "9.9")
    state = await keeper.newest()
    assert state is not None
    assert state.seq == 9


async def test_what_a_killed_writer_left_does_not_show_and_is_removed(keeper: SnapshotStore, client: Client) -> None:
    await save(keeper, 5)
    await client.jetstream().publish(f"$O.{BUCKET}.C.HALF", b"half a snapshot")
    state = await SnapshotStore(client).newest()
    assert state is not None
    assert state.seq == 5
    assert await keeper.prune() == []
    assert f"$O.{BUCKET}.C.HALF" not in await keeper._subjects("C")
    assert (await keeper.newest()) is not None


async def test_old_ones_go_and_no_kind_pushes_out_another(
    keeper: SnapshotStore, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await save(keeper, 5, 6, 7, 8, 9)
    with monkeypatch.context() as newer:
        newer.setattr(snapshot, "CORE_VERSION", "9.9")
        await save(keeper, 20, 21, 22)
    await damage(client, keeper, 9)
    await keeper.newest()
    gone = await keeper.prune(keep=2)
    assert gone == [snapshot_name(seq) for seq in (5, 6, 20)]
    assert [each.info.seq for each in await keeper.kept()] == [7, 8, 9, 21, 22]


async def test_a_full_bucket_makes_room_for_the_newest(client: Client) -> None:
    store = SnapshotStore(client, keeps=True)
    await store.ensure(max_bytes=12_000)
    for state in states(*range(5, 40)):
        await store.save(state)
    state = await store.newest()
    assert state is not None
    assert state.seq == 39
    assert len(await store.kept()) < 35


async def test_without_a_store_there_is_none_and_without_a_bus_it_is_said(server: NatsServer, client: Client) -> None:
    assert await SnapshotStore(client).newest() is None
    server.kill9()
    with pytest.raises(JournalUnavailableError):
        await SnapshotStore(client).newest()


# ---- where a fold begins ----


async def write(client: Client, cluster: Cluster) -> NatsJournal:
    journal = NatsJournal(client)
    await journal.ensure_stream(max_bytes=8 * 1024**2)
    for recorded in cluster.frames:
        answer = await journal.append(recorded.subject, recorded.frame)
        assert answer == Appended(recorded.seq)
    return journal


async def test_a_fold_goes_on_from_the_newest_snapshot(keeper: SnapshotStore, client: Client) -> None:
    cluster = Cluster()
    cluster.node("n1", 4000)
    for _ in range(20):
        cluster.submit(spec(100))
    cluster.settle()
    journal = await write(client, cluster)
    assert (await load_state(client)).seq == 0
    await save(keeper, 5, 9)
    state = await load_state(client)
    assert state.seq == 9
    async with asyncio.timeout(20):
        async for recorded in journal.read(state.seq, await journal.end()):
            evolve(state, recorded)
    assert state.digest() == cluster.state.digest()
    assert (await load_state(client, at_most=8)).seq == 5
    assert (await load_state(client, at_most=4)).seq == 0


async def test_a_snapshot_beyond_the_end_is_of_another_journal(keeper: SnapshotStore, client: Client) -> None:
    cluster = Cluster()
    cluster.node("n1", 4000)
    cluster.submit(spec(100))
    await write(client, cluster)
    await save(keeper, len(cluster.frames) + 5)
    assert (await load_state(client)).seq == 0


@pytest.mark.parametrize("lie", [{"seq": 5}, {"chain": "b3:" + "0" * 64}, {"state_digest": "b3:0"}])
async def test_a_description_that_is_not_the_snapshots_own_is_not_believed(
    keeper: SnapshotStore, client: Client, lie: dict[str, object]
) -> None:
    await save(keeper, 4, 9)
    (_, kept) = await keeper.kept()
    description = msgspec.json.encode(msgspec.structs.replace(kept.info, **lie)).decode()
    await keeper._objects.update_meta(kept.name, ObjectMeta(name=kept.name, description=description))
    found = await keeper.find(at_most=5 if "seq" in lie else None)
    assert found is not None
    assert (found.state.seq, found.info.seq, found.info.chain) == (4, 4, "")
    assert "description" in next(each.set_aside for each in await keeper.kept() if each.name == kept.name)


async def test_a_snapshot_of_a_journal_that_was_made_anew_is_not_used(keeper: SnapshotStore, client: Client) -> None:
    await save(keeper, 9)
    later = Cluster()
    later.node("n2", 4000)
    while len(later.frames) < 20:
        later.submit(spec(100))
        later.settle()
    await write(client, later)
    with capture_logs() as logs:
        assert (await load_state(client)).seq == 0
    assert "snapshot_of_another_journal" in [line["event"] for line in logs]
