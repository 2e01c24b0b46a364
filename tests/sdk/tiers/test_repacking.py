"""Packs that are mostly dead are written again, and whatever happens meanwhile every checkpoint stays whole."""

from __future__ import annotations

import os
from typing import Any

import pytest
from tidegate.errors import CorruptCheckpointError
from tidegate.tiers import repacking
from tidegate.tiers.collecting import PAUSE_SECONDS, collect
from tidegate.tiers.holding import missing_of
from tidegate.tiers.repacking import repack
from tidegate.tiers.scrubbing import Scrub

from tests.sdk.tiers.moved import JOB, TENANT, Node

NOW = 2_000_000_000
FROZEN = os.urandom(50_000)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repacking, "DEAD_BYTES_MIN", 10_000)


def value(seed: int, **more: Any) -> dict[str, Any]:
    """Return layers of which a part stays the same."""
    return {"model": {"frozen": FROZEN, "w": os.urandom(200_000), **more}, "state": {"step": seed}}


def repacked(node: Node) -> repacking.Repacked:
    with node.tiers.staging() as staging:
        done = repack(node.warm, staging)
    assert done is not None
    return done


def two(node: Node) -> tuple[Any, Any]:
    """Return two promoted checkpoints, of which the second needs little of the first one's pack."""
    first, second = node.save(1, **value(1)), node.save(2, **value(2))
    for committed in (first, second):
        node.promote(committed)
    return first, second


def restores(node: Node, elsewhere: Node, name: str) -> bool:
    elsewhere.fetch(name)
    found = elsewhere.find()
    return bool(found.committed.name == name and found.skipped == 0)


def test_what_lives_is_written_again_and_the_rest_is_freed(node: Node, elsewhere: Node) -> None:
    first, second = two(node)
    old = {pack for layer in first.root.layers for pack in layer.packs}
    assert repacked(node).replaced == [], "all of it lives"
    node.warm.remove_root(first.name)
    done = repacked(node)
    assert set(done.replaced) == old
    assert len(done.made) == 1
    assert 190_000 < done.freed_bytes < 215_000
    apart = collect(node.warm, NOW)
    assert {f"packs/{pack}.pack" for pack in old} <= set(apart.quarantined)
    assert missing_of(node.warm, second.root) == []
    gone = collect(node.warm, NOW + PAUSE_SECONDS)
    assert gone.returned == []
    assert gone.deleted_bytes > 240_000
    assert node.warm.packs().isdisjoint(old)
    assert repacked(node) == ([], [], 0), "once"
    assert restores(node, elsewhere, second.name)
    with node.tiers.staging() as staging:
        assert Scrub(node.warm, [], staging).run().damages == []


def test_a_root_that_names_the_old_pack_is_promoted_without_sending_it_again(node: Node, elsewhere: Node) -> None:
    first, second = two(node)
    node.warm.remove_root(first.name)
    (old,) = repacked(node).replaced
    collect(node.warm, NOW)
    collect(node.warm, NOW + PAUSE_SECONDS)
    third = node.save(3, **value(3))
    assert old in {pack for layer in third.root.layers for pack in layer.packs}
    assert node.promote(third).sent == 1
    assert old not in node.warm.packs()
    assert collect(node.warm, NOW + 2 * PAUSE_SECONDS).quarantined == []
    assert restores(node, elsewhere, third.name)
    for name in (second.name, third.name):
        node.warm.remove_root(name)
    collect(node.warm, NOW + 3 * PAUSE_SECONDS)
    assert node.warm.replaced() == set(), "nothing names it any more"


def test_a_chunk_that_died_and_is_needed_again_brings_the_old_pack_back(node: Node, elsewhere: Node) -> None:
    again = os.urandom(60_000)
    first = node.save(1, **value(1, once=again))
    node.promote(first)
    second = node.save(2, **value(2))
    node.promote(second)
    node.warm.remove_root(first.name)
    (old,) = repacked(node).replaced
    collect(node.warm, NOW)
    collect(node.warm, NOW + PAUSE_SECONDS)
    third = node.save(3, **value(3, once=again))
    node.promote(third)
    assert old in node.warm.packs()
    assert missing_of(node.warm, third.root) == []
    assert f"packs/{old}.pack" not in collect(node.warm, NOW + 2 * PAUSE_SECONDS).quarantined
    assert restores(node, elsewhere, third.name)


def test_nothing_is_repacked_while_something_is_brought_there(node: Node) -> None:
    first, second = two(node)
    node.warm.remove_root(first.name)
    with node.warm.leased(second.root.layers, []), node.tiers.staging() as staging:
        assert repack(node.warm, staging) is None
    assert repacked(node).replaced


def test_a_damaged_chunk_is_not_written_again(node: Node) -> None:
    first, second = two(node)
    node.warm.remove_root(first.name)
    (old,) = {pack for layer in first.root.layers for pack in layer.packs}
    index = node.warm.index()
    frozen = next(entry for entry in index.packs[old].entries if entry.plain_bytes == len(FROZEN))
    name = node.warm.path("packs", f"{old}.pack")
    data = bytearray(node.warm.objects.read(name, 1 << 30))
    data[frozen.offset] ^= 1
    node.warm.objects.put(name, bytes(data))
    before = node.warm.packs()
    with pytest.raises(CorruptCheckpointError, match=r"chunk .* at offset .* is damaged"):
        repacked(node)
    assert node.warm.packs() == before
    assert node.warm.replaced() == set()
    collect(node.warm, NOW)
    assert node.warm.packs() == before
    with node.tiers.holdings(TENANT, JOB) as held, node.tiers.staging() as staging:
        others = [each for each in held if each.name != "warm"]
        (damage,) = Scrub(node.warm, others, staging).run().damages
    assert damage.repaired_from == "hot"
    assert repacked(node).replaced == [old]
    assert missing_of(node.warm, second.root) == []


def test_a_new_pack_that_is_lost_is_no_reason_to_delete_the_old_one(node: Node, elsewhere: Node) -> None:
    first, second = two(node)
    node.warm.remove_root(first.name)
    done = repacked(node)
    node.warm.objects.remove(node.warm.path("packs", f"{done.made[0]}.pack"))
    collect(node.warm, NOW)
    collect(node.warm, NOW + PAUSE_SECONDS)
    assert set(done.replaced) <= node.warm.packs()
    assert restores(node, elsewhere, second.name)


def test_a_scrub_and_a_restore_that_began_before_find_what_moved(
    node: Node, elsewhere: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two(node)
    node.warm.remove_root(first.name)
    real, moved = type(node.warm).fill, []

    def after_the_collection(tier: Any, pack_id: str, descriptor: int, on_moved: Any) -> None:
        if not moved and tier.name == "warm":
            moved.append(repacked(node))
            collect(node.warm, NOW)
        real(tier, pack_id, descriptor, on_moved)

    monkeypatch.setattr(type(node.warm), "fill", after_the_collection)
    with node.tiers.staging() as staging:
        assert Scrub(node.warm, [], staging).run().damages == []
    assert moved[0].replaced
    moved.clear()
    third = node.save(3, **value(3))
    node.promote(third)
    node.warm.remove_root(second.name)
    assert restores(node, elsewhere, third.name)
