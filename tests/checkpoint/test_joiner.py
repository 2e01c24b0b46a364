"""One root over ranks on several nodes, each with a disk and a checkpoint service of its own, and one shared tier."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tidegate import SaveFailedError, Shard
from tidegate.checkpoint import nodepart, places, retention
from tidegate.checkpoint.grace import Budget
from tidegate.checkpoint.handle import Checkpoint
from tidegate.checkpoint.nodepart import NotJoinedError
from tidegate.checkpoint.occasions import JOIN_SECONDS_MAX
from tidegate.checkpoint.root import Root
from tidegate.checkpoint.store import CheckpointStore, Committed
from tidegate.tiers import collecting, eviction, joining, moving
from tidegate.tiers.holding import HotHolding, missing_of
from tidegate.tiers.job import JobTier
from tidegate.tiers.objects import TierUnavailableError
from tidegate.tiers.tiers import Tiers
from tidegate_checkpoint import joiner, saves
from tidegate_checkpoint.saves import Save
from tidegate_checkpoint.settings import Settings
from tidegate_checkpoint.shell import CheckpointService
from tidegate_events import events as e
from tidegate_events.bus import BusSettings
from tidegate_events.journal.memory import MemoryJournal

from tests.checkpoint.ganged import JOB, TENANT, Agents, GangHere, Rank, gang
from tests.checkpoint.test_upkeep import quick, running, until
from tests.support.stores import STAMP

assert quick  # its fixture holds for this module too

MATRIX = np.arange(90 * 50, dtype=np.float32).reshape(90, 50)
PLACED = {"n1": (0, 2), "n2": (1,)}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joiner, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(joiner, "RETRY_SECONDS", 0.05)


def layers(rank: int, world: int = 3, add: float = 0.0) -> dict[str, Any]:
    rows = np.array_split(np.arange(90), world)[rank]
    piece = MATRIX[rows[0] : rows[-1] + 1] + add
    return {"model": {"w": Shard(piece, (int(rows[0]), 0), MATRIX.shape)}, "state": {"rank": rank, "step": 7}}


def settings_of(home: Path, node: str, **more: Any) -> Settings:
    (home / node).mkdir(exist_ok=True)
    given = {"warm": str(home / "warm"), "cold": None, "scrub_seconds": 0, "gc_seconds": 3600} | more
    return Settings(bus=BusSettings(), hot_dir=home / node, instance=node, node=node, **given)


@asynccontextmanager
async def cluster(home: Path, nodes: tuple[str, ...] = ("n1", "n2"), **more: Any) -> AsyncIterator[Agents]:
    """Run a service on each node; yield what stands for the nodes' agents."""
    journal = MemoryJournal()
    settings = {node: settings_of(home, node, **more) for node in nodes}
    hot = {node: each.hot_dir for node, each in settings.items()}
    agents = Agents(journal, hot, Tiers(settings[nodes[0]].tiers))
    async with AsyncExitStack() as stack:
        for node in nodes:
            service = await stack.enter_async_context(running(settings[node], journal))
            agents.joiners.append(service.joiner)
        yield agents


async def together(ranks: list[Rank], given: Callable[[int], dict[str, Any]] = layers, **more: Any) -> list[Any]:
    """Save on every rank at once; return what each returned or raised."""
    return list(await asyncio.gather(*(asyncio.to_thread(each.save, given(each.rank), **more) for each in ranks)))


async def told(journal: MemoryJournal, *kinds: type[e.Event]) -> list[Any]:
    found = [event async for each in journal.read(0, await journal.end()) for event in each.frame.events]
    return [event for event in found if isinstance(event, kinds)]


async def first(journal: MemoryJournal, kind: type[e.Event], count: int = 1) -> None:
    """Wait until so many of a kind are in the journal."""
    async with asyncio.timeout(30):
        while len(await told(journal, kind)) < count:  # noqa: ASYNC110 - a journal is looked at
            await asyncio.sleep(0.02)


def warm(agents: Agents) -> JobTier:
    return agents.tiers.of_job(TENANT, JOB)[0]


def restored(agents: Agents, root: Root, home: Path) -> Checkpoint:
    """Return a checkpoint on another node, which has nothing of it but through the tiers."""
    elsewhere = Tiers(settings_of(home, "n9").tiers)
    with elsewhere.hot_store(TENANT, JOB) as held:
        moving.move(root.name, elsewhere.of_job(TENANT, JOB), HotHolding(held), held.staging)
    return Checkpoint(Committed(root, home / "n9" / TENANT / JOB))


async def test_ranks_on_two_nodes_save_one_checkpoint(tmp_path: Path) -> None:
    async with cluster(tmp_path) as agents:
        saved = await together(gang(agents, PLACED))
        assert all(isinstance(each, Committed) for each in saved), saved
        (root,) = {each.root.id: each.root for each in saved}.values()
        assert (root.step, root.stamp.rank, root.stamp.world_size) == (7, 0, 3)
        decided = await told(agents.journal, e.CheckpointSaved, e.CheckpointVerified)
        assert [type(event) for event in decided] == [e.CheckpointSaved, e.CheckpointVerified]
        assert (decided[0].checkpoint.id, decided[0].tier, decided[0].node, decided[0].rank) == (
            root.id,
            "warm",
            "n1",
            0,
        )
        assert warm(agents).roots() == [root.name]
        assert missing_of(warm(agents), root) == []
        assert warm(agents).objects.names(warm(agents).path("leases")) == [], "parts are kept until they are named"
        parts = await told(agents.journal, e.CheckpointPartSaved)
        assert sorted((part.node, part.ranks) for part in parts) == [("n1", (0, 2)), ("n2", (1,))]
        promoted = await told(agents.journal, e.CheckpointPartPromoted)
        assert sorted(each.node for each in promoted) == ["n1", "n2"]
    found = restored(agents, root, tmp_path)
    found.verify()
    np.testing.assert_array_equal(found.load("model")["model"]["w"], MATRIX)
    for index in range(2):  # another world size
        piece = found.load("model", part=(index, 2))["model"]["w"]
        np.testing.assert_array_equal(piece.data, MATRIX[index * 45 : index * 45 + 45])
    assert found.load("state")["state"] == {"rank": 0, "step": 7}


async def test_the_next_save_sends_only_what_changed_and_old_parts_leave_the_node(tmp_path: Path) -> None:
    def step(number: int) -> Callable[[int], dict[str, Any]]:
        return lambda rank: layers(rank) | {"state": {"step": number, "data": b"x" * 9000 * number}}

    async with cluster(tmp_path) as agents:
        ranks = gang(agents, PLACED)
        for number in range(1, 6):
            saved = await together(ranks, step(number), step=number, number=number)
            assert all(isinstance(each, Committed) for each in saved), saved
        stores = [
            CheckpointStore(agents.hot[each.node] / TENANT / JOB, replace(STAMP, rank=each.rank)) for each in ranks[:2]
        ]
        for store in stores:
            store.retain()
    for node in PLACED:
        with places.opened(tmp_path / node / TENANT / JOB) as held:
            names = [root.step for root in nodepart.parts(held)]
            assert names == [3, 4, 5], names
            assert retention.collect(held) == [], "all that lies there is needed by a part"
            assert len(os.listdir(tmp_path / node / TENANT / JOB / "joined")) == 3
    used = eviction.used_bytes(tmp_path / "n1")
    assert eviction.make_room(agents.tiers, eviction.Watermarks(used - 1, used - 1), {JOB}) == []
    assert eviction.used_bytes(tmp_path / "n1") == used, "the job runs"
    assert eviction.make_room(agents.tiers, eviction.Watermarks(used - 1, used - 1), set()) == []
    store = tmp_path / "n1" / TENANT / JOB
    assert [list((store / kind).iterdir()) for kind in ("packs", "manifests", "node-parts", "joined")] == [[]] * 4
    assert len(warm(agents).roots()) == 5
    per_layer = [root.layer("model") for root in map(warm(agents).root, warm(agents).roots())]
    assert len({entry.manifest for entry in per_layer if entry}) == 1, "an unchanged layer is the same one"


async def test_a_rank_that_fails_vetoes_on_every_node(tmp_path: Path) -> None:
    def given(rank: int) -> dict[str, Any]:
        return layers(rank) | ({"state": {"bad": np.zeros(3)}, "experience": {}} if rank == 1 else {})

    def overlapping(rank: int) -> dict[str, Any]:
        return layers(0 if rank == 1 else rank)

    async with cluster(tmp_path) as agents:
        ranks = gang(agents, PLACED)
        for number, (wrong, text) in enumerate(((given, "different layers"), (overlapping, "overlap")), start=1):
            saved = await together(ranks, wrong, number=number)
            assert all(isinstance(each, NotJoinedError) and text in str(each) for each in saved[:2]), saved
            assert isinstance(saved[2], SaveFailedError), saved
        manifests = agents.hot["n2"] / TENANT / JOB / "manifests"
        manifests.rename(manifests.with_name("moved"))
        manifests.write_text("no directory")
        saved = await together(ranks, number=3)
        assert all("rank 1" in str(each) and "not a directory" in str(each) for each in (saved[0], saved[2])), saved
        assert "not a directory" in str(saved[1])
        assert warm(agents).roots() == []
        assert await told(agents.journal, e.CheckpointSaved) == []


async def test_before_a_deadline_only_what_every_rank_stored_is_in_the_root(tmp_path: Path) -> None:
    hurried = Budget(time.monotonic() + 60, bytes_per_second=10.0)
    async with cluster(tmp_path) as agents:
        ranks = gang(agents, PLACED)
        saved = await asyncio.gather(
            *(
                asyncio.to_thread(each.save, layers(each.rank), budget=hurried if each.rank == 1 else None)
                for each in ranks
            )
        )
        (root,) = {each.root.id: each.root for each in saved}.values()
        assert ([entry.name for entry in root.layers], root.lost) == (["state"], ("model",))
        (told_of,) = await told(agents.journal, e.CheckpointSaved)
        assert told_of.checkpoint.lost == ("model",)
        assert root.name in warm(agents).roots()


async def test_a_full_disk_of_one_rank_is_named_on_every_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate.checkpoint import sharding  # noqa: PLC0415

    real = sharding.store_layers

    def failing(packer: Any, snapshot: Any, kept: Any = None, budget: Any = None) -> Any:
        state = next(each for each in snapshot.layers if each.name == "state")
        if state.tree["d"][0][1] == 2:
            raise OSError(28, "No space left on device")
        return real(packer, snapshot, kept, budget)

    monkeypatch.setattr(sharding, "store_layers", failing)
    async with cluster(tmp_path) as agents:
        saved = await together(gang(agents, PLACED))
        assert all(isinstance(each, SaveFailedError) for each in saved), saved
        assert all("rank 2" in str(each) and "No space left" in str(each) for each in saved), saved
        (veto,) = await told(agents.journal, e.CheckpointFailed)
        assert (veto.stage, veto.step, veto.reason.code, veto.save != "") == ("save", 7, "SaveFailed", True)
        assert "rank 2 on node n1" in veto.reason.detail
        assert warm(agents).roots() == []
        await until(lambda: warm(agents).objects.names(warm(agents).path("leases")) == [])


async def test_nothing_is_joined_while_a_part_is_not_durable_and_a_restart_goes_on(tmp_path: Path) -> None:
    """Every service is ended and begun anew after each word in the journal; the root is made once, the same."""
    made: list[str] = []
    journal = MemoryJournal()
    hot = {}
    for node in PLACED:
        hot[node] = settings_of(tmp_path, node).hot_dir
    agents = Agents(journal, hot, Tiers(settings_of(tmp_path, "n1").tiers))
    saving = asyncio.create_task(together(gang(agents, PLACED)))
    await first(journal, e.CheckpointPartSaved, 2)
    assert warm(agents).roots() == []
    seen = await journal.end()
    for _ in range(40):
        n1, n2 = (running(settings_of(tmp_path, node), journal) for node in PLACED)
        async with n1 as one, n2 as two:
            agents.joiners = [one.joiner, two.joiner]
            async with asyncio.timeout(20):
                while await journal.end() == seen and not saving.done():  # noqa: ASYNC110 - a journal is looked at
                    await asyncio.sleep(0.002)
        made += [name for name in warm(agents).roots() if name not in made]
        promoted = await told(journal, e.CheckpointPartPromoted)
        assert not made or {each.node for each in promoted} == {"n1", "n2"}
        seen = await journal.end()
        if saving.done():
            break
    saved = await saving
    assert len(made) == 1
    assert {each.root.name for each in saved} == set(made)
    assert len(await told(journal, e.CheckpointSaved)) == 1
    assert len(await told(journal, e.CheckpointPartPromoted)) == 2


async def test_a_root_that_was_made_by_a_killed_joiner_is_the_same_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, killed = joining.join, [True]

    def dies(*given: Any) -> Root:
        root = real(*given)
        if killed.pop() if killed else False:
            raise TierUnavailableError("it was killed here, with the root made and nobody told")
        return root

    monkeypatch.setattr(joining, "join", dies)
    async with cluster(tmp_path) as agents:
        saved = await together(gang(agents, PLACED))
        assert len({each.root.id for each in saved}) == 1, saved
        assert warm(agents).roots() == [saved[0].root.name]


async def test_a_root_that_was_made_is_told_though_it_was_to_be_given_up_when_its_joiner_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a checkpoint that nobody was told of would stay in the tier, and count as one that is kept."""
    real = joining.join

    def dies(*given: Any) -> Root:
        real(*given)
        monkeypatch.setattr(saves, "JOIN_SECONDS_MAX", 0)
        raise TierUnavailableError("it was killed here, with the root made and nobody told, and is back too late")

    monkeypatch.setattr(joining, "join", dies)
    async with cluster(tmp_path) as agents:
        saved = await together(gang(agents, PLACED))
        assert len({each.root.id for each in saved}) == 1, saved
        assert warm(agents).roots() == [saved[0].root.name]
        assert await told(agents.journal, e.CheckpointFailed) == []


async def test_a_root_of_a_save_that_was_given_up_meanwhile_is_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the service of another node, while this one made it."""
    real = joining.join
    async with cluster(tmp_path) as agents:
        loop, others = asyncio.get_running_loop(), agents.joiners[1]
        reason = e.Reason(code="TooLate", detail="the service of rank 0's node does not decide")

        async def saw_none(_save: Save) -> None:
            """It looked a moment before."""

        def vetoed_meanwhile(*given: Any) -> Root:
            root = real(*given)
            (save,) = others._fold.catalogue.saves.undecided()
            asyncio.run_coroutine_threadsafe(others._veto(save, reason), loop).result(10)
            return root

        monkeypatch.setattr(others, "_made_before", saw_none)
        monkeypatch.setattr(joining, "join", vetoed_meanwhile)
        saved = await together(gang(agents, PLACED))
        assert all("does not decide" in str(each) for each in saved), saved
        await until(lambda: not warm(agents).roots())


async def test_a_damaged_part_is_not_joined(tmp_path: Path) -> None:
    async with cluster(tmp_path) as agents:
        hot = agents.hot["n2"] / TENANT / JOB

        class Damaging(GangHere):
            def stored(self, save: str, part: Root, ranks: tuple[int, ...]) -> None:
                (pack, *_) = sorted((hot / "packs").iterdir())
                data = bytearray(pack.read_bytes())
                data[100] ^= 1
                pack.chmod(0o600)
                pack.write_bytes(data)
                super().stored(save, part, ranks)

        ranks = gang(agents, PLACED)
        given = {rank.rank: Damaging(agents, "n2") if rank.node == "n2" else None for rank in ranks}
        saved = await asyncio.gather(
            *(asyncio.to_thread(rank.save, layers(rank.rank), gang=given[rank.rank]) for rank in ranks)
        )
        assert all("vetoed" in str(each) or "node n2" in str(each) for each in saved), saved
        assert warm(agents).roots() == []


async def test_without_a_shared_tier_nothing_is_joined_and_why_is_said(tmp_path: Path) -> None:
    async with cluster(tmp_path, warm=None) as agents:
        saved = await together(gang(agents, PLACED))
        assert all("TIDEGATE_WARM" in str(each) for each in saved), saved


async def test_a_lost_node_and_a_member_that_leaves_end_the_wait(tmp_path: Path) -> None:
    async with cluster(tmp_path) as agents:
        ranks = gang(agents, PLACED)
        saving = asyncio.create_task(together([ranks[0], ranks[2]]))
        await first(agents.journal, e.CheckpointPartSaved)
        exited = e.SandboxExited(**agents.common(), rank=1, node="n2", outcome="failed", exit_code=1)
        await agents.say("n2", exited)
        saved = await saving
        assert all("rank 1 on node n2 ended" in str(each) for each in saved), saved


async def test_what_takes_too_long_is_vetoed_and_a_part_that_comes_late_is_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path) as agents:
        ranks = gang(agents, PLACED)
        real = agents.common
        monkeypatch.setattr(agents, "common", lambda: real() | {"at_ns": time.time_ns() - int(JOIN_SECONDS_MAX * 1e9)})
        saved = await together([ranks[0], ranks[2]])
        assert all("node n2 stored no part" in str(each) for each in saved), saved
        monkeypatch.setattr(agents, "common", real)
        late = await asyncio.to_thread(ranks[1].save, layers(1))
        assert "node n2 stored no part" in str(late)
        assert warm(agents).roots() == []
        assert len(await told(agents.journal, e.CheckpointFailed)) == 1


async def test_another_attempt_on_other_nodes_joins_with_nothing_of_the_one_before(tmp_path: Path) -> None:
    async with cluster(tmp_path, ("n1", "n2", "n3")) as agents:
        everywhere = agents.hot
        agents.hot = {node: everywhere[node] for node in ("n1", "n2")}
        old = gang(agents, {"n1": (0,), "n2": (1, 2)})
        lonely = GangHere(agents, "n1", is_heard=True)
        before = asyncio.create_task(asyncio.to_thread(old[0].save, layers(0), gang=lonely))
        await first(agents.journal, e.CheckpointPartSaved)
        again = Agents(agents.journal, {node: everywhere[node] for node in ("n3", "n1")}, agents.tiers, attempt=2)
        again.joiners = agents.joiners
        again.said = 1000
        saved = await together(gang(again, {"n3": (0,), "n1": (1,)}), lambda rank: layers(rank, 2))
        assert len({each.root.id for each in saved}) == 1, saved
        assert (saved[0].root.stamp.attempt, saved[0].root.stamp.world_size) == (2, 2)
        assert warm(agents).roots() == [saved[0].root.name]
        assert not before.done()
        left = e.SandboxExited(**agents.common(), rank=1, node="n2", outcome="lost")
        await agents.say("n2", left)
        assert "ended before" in str(await before)


async def test_collecting_spares_parts_until_they_are_named_and_not_after(tmp_path: Path) -> None:
    async with cluster(tmp_path) as agents:
        ranks = gang(agents, PLACED)
        saving = asyncio.create_task(together([ranks[0], ranks[2]]))
        await first(agents.journal, e.CheckpointPartPromoted)
        now = int(time.time())
        done = collecting.collect(warm(agents), now, 0)
        assert (done.quarantined, done.deleted) == ([], [])
        assert len(warm(agents).packs()) == 2, "one of each rank"
        other = await asyncio.to_thread(ranks[1].save, layers(1))
        saved = [*await saving, other]
        assert len({each.root.id for each in saved}) == 1, saved
        done = collecting.collect(warm(agents), now + 1, 0)
        assert len(done.quarantined) == 4, "the manifests of two layers over the ranks of each node"
        assert all(name.startswith("manifests/") for name in done.quarantined)
        restored(agents, saved[0].root, tmp_path).verify()
        warm(agents).remove_root(saved[0].root.name)
        gone = collecting.collect(warm(agents), now + 2, 0).quarantined
        assert sum(name.startswith("packs/") for name in gone) == 3


async def test_what_a_service_is_told_of_no_save_it_answers_with_waiting(tmp_path: Path) -> None:
    async with running(settings_of(tmp_path, "n1"), MemoryJournal()) as service:
        asked = msgspec.json.encode({"job": "j", "save": "s", "part_id": "p"})
        assert msgspec.json.decode(await service.joiner.answer(asked)) == {"outcome": "waiting"}
        assert msgspec.json.decode(await service.joiner.answer(b"no"))["code"]
        assert isinstance(service, CheckpointService)
