"""Trajectories and environment snapshots are layers like any other: stored once, in every tier, restored in part."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from tidegate.checkpoint.handle import Checkpoint
from tidegate.tiers import reading
from tidegate.tiers.reading import Wanted

from tests.sdk.tiers.moved import JOB, TENANT, Node

SEGMENT_BYTES = 400_000


def segment(number: int) -> bytes:
    """Return a sealed segment of trajectories: it never changes again."""
    return random.Random(number).randbytes(SEGMENT_BYTES)


def experience(count: int) -> dict[str, Any]:
    """Return a buffer of so many sealed segments, with what says how it is sampled."""
    chance = np.random.default_rng(count)
    return {
        "segments": {f"s{number:04d}": segment(number) for number in range(count)},
        "priorities": chance.random(2000),
        "rng": chance.bit_generator.state,
        "limiter": {"inserts": 32 * count, "samples": 7},
        "frontier": f"shard-3:{count}",
    }


def environments(step: int) -> dict[str, Any]:
    """Return snapshots of simulators: their own bytes, and the numbers they draw next."""
    return {
        "step": step,
        "environments": [
            {"snapshot": random.Random(100 * step + at).randbytes(30_000), "rng": random.Random(at).getstate()}
            for at in range(3)
        ],
    }


def bytes_of(node: Node, tier: str) -> int:
    return sum(path.stat().st_size for path in node.pack_files(tier))


def test_a_sealed_segment_is_stored_and_sent_once(node: Node, elsewhere: Node) -> None:
    first = node.save(1, experience=experience(5), state=environments(1))
    node.promote(first)
    before = {tier: bytes_of(node, tier) for tier in ("hot", "warm")}
    second = node.save(2, experience=experience(6), state=environments(2))
    node.promote(second)
    for tier, size in before.items():
        grown = bytes_of(node, tier) - size
        assert SEGMENT_BYTES < grown < SEGMENT_BYTES + 200_000, f"{tier}: one segment, priorities, environments"
    elsewhere.fetch(second.name)
    found = elsewhere.find().committed
    loaded = Checkpoint(found).load("experience", "state")
    expected = experience(6)
    assert loaded["experience"]["segments"] == expected["segments"]
    assert np.array_equal(loaded["experience"]["priorities"], expected["priorities"])
    for name in ("rng", "limiter", "frontier"):
        assert loaded["experience"][name] == expected[name]
    assert loaded["state"] == environments(2)
    restored = random.Random()
    restored.setstate(loaded["state"]["environments"][1]["rng"])
    assert restored.random() == random.Random(1).random()


def test_one_segment_and_one_layer_are_restored_from_the_cold_tier_alone(node: Node, elsewhere: Node) -> None:
    saved = node.save(3, experience=experience(4), state=environments(3), model={"w": b"m" * 9000})
    node.promote(saved, node.cold)
    wanted = Wanted(TENANT, JOB, saved.root, ["experience"], elsewhere.tiers.hot.parent)

    def one(store: Any) -> Any:
        given = Checkpoint(saved._replace(store=store))
        return given.load("experience", tensors=["segments.s0002"])["experience"]

    assert reading.read_from(elsewhere.tiers, wanted, one) == {"segments.s0002": segment(2)}
    assert not elsewhere.store.exists(), "nothing else was brought here"
