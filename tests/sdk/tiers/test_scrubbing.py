"""Every object of a tier is read back; what is damaged is named, and replaced from a tier that has it whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidegate.tiers import eviction
from tidegate.tiers.eviction import Watermarks
from tidegate.tiers.holding import HotHolding, OnMoved
from tidegate.tiers.job import JobTier
from tidegate.tiers.scrubbing import Scrub, Scrubbed

from tests.sdk.tiers.moved import JOB, TENANT, Node

KINDS = ("packs", "manifests", "roots")


def scrub(node: Node, tier: str, *, repair: bool = True) -> Scrubbed:
    with node.tiers.holdings(TENANT, JOB) as held, node.tiers.hot_store(TENANT, JOB) as hot:
        everyone = {each.name: each for each in held} | {"hot": HotHolding(hot)}
        target = everyone.pop(tier)
        return Scrub(target, list(everyone.values()) if repair else [], hot.staging).run()


def files_of(node: Node, tier: str, kind: str) -> list[Path]:
    base = node.store if tier == "hot" else Path(dict(node.tiers.shared)[tier].address) / TENANT / JOB
    return sorted((base / kind).iterdir())


def test_what_is_whole_is_said_to_be(node: Node) -> None:
    node.promote(node.save(1))
    assert scrub(node, "warm") == Scrubbed(1, 1, [])
    assert scrub(node, "hot") == Scrubbed(1, 1, [])


@pytest.mark.parametrize("tier", ["hot", "warm", "cold"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_damage_is_repaired_in_each_tier(node: Node, tier: str, kind: str) -> None:
    committed = node.save(1)
    node.promote(committed)
    node.promote(committed, node.cold)
    damaged = files_of(node, tier, kind)[0]
    before = damaged.read_bytes()
    node.damage(damaged)
    seen = scrub(node, tier, repair=False)
    assert [(each.tier, each.repaired_from) for each in seen.damages] == [(tier, None)]
    assert seen.damages[0].what.startswith(kind[:-1])
    (repaired,) = scrub(node, tier).damages
    assert repaired.repaired_from == ("warm" if tier == "hot" else "hot")
    assert damaged.read_bytes() == before
    assert scrub(node, tier).damages == []


def test_every_block_of_a_pack_is_compared(node: Node) -> None:
    node.promote(node.save(1))
    (path,) = node.pack_files("warm")
    whole = path.read_bytes()
    for at in range(0, len(whole), 2048):
        node.damage(path, at)
        assert [each.repaired_from for each in scrub(node, "warm").damages] == ["hot"], at
        assert path.read_bytes() == whole


def test_what_no_tier_has_whole_stays_and_is_named(node: Node) -> None:
    node.promote(node.save(1))
    for tier in ("hot", "warm"):
        node.damage(files_of(node, tier, "packs")[0])
    (lost,) = scrub(node, "warm").damages
    assert lost.repaired_from is None
    assert "damaged" in lost.why


def test_what_was_let_go_while_it_was_read_is_no_damage(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    committed = node.save(1)
    node.promote(committed)
    fill = type(node.warm).fill

    def let_go_before(tier: JobTier, pack_id: str, descriptor: int, on_moved: OnMoved) -> None:
        tier.remove_root(committed.name)
        tier.objects.remove(tier.path("packs", f"{pack_id}.pack"))
        fill(tier, pack_id, descriptor, on_moved)

    monkeypatch.setattr(JobTier, "fill", let_go_before)
    assert scrub(node, "warm").damages == []
    assert node.warm.packs() == set()


def test_a_lost_object_is_put_back(node: Node) -> None:
    node.promote(node.save(1))
    for kind in KINDS[:2]:
        path = files_of(node, "warm", kind)[0]
        path.unlink()
        assert [each.repaired_from for each in scrub(node, "warm").damages] == ["hot"]
        assert path.exists()


def test_room_is_made_of_what_a_shared_tier_holds(node: Node) -> None:
    saved = [node.save(step) for step in (1, 2, 3)]
    for committed in saved[:2]:
        node.promote(committed)
    used = eviction.used_bytes(node.tiers.hot)
    assert used > 3 * 40_000
    assert eviction.make_room(node.tiers, Watermarks(used, 0), set()) == []
    assert eviction.make_room(node.tiers, Watermarks(used - 1, used - 1), set()) == [(JOB, saved[0].name)]
    assert eviction.make_room(node.tiers, Watermarks(0, 0), set()) == [(JOB, saved[1].name)]
    # The third is nowhere else.
    assert [path.stem for path in files_of(node, "hot", "roots")] == [saved[2].name]
    assert node.find().committed.root == saved[2].root


def test_the_newest_of_a_running_job_stays_on_its_node(node: Node) -> None:
    committed = node.save(1)
    node.promote(committed)
    assert eviction.make_room(node.tiers, Watermarks(0, 0), {JOB}) == []
    assert eviction.make_room(node.tiers, Watermarks(0, 0), set()) == [(JOB, committed.name)]
    assert eviction.used_bytes(node.tiers.hot) < 1000
    assert eviction.watermarks(1000) == Watermarks(900, 750)
