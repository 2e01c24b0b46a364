"""Bounds of lending: of what a pass holds, of how often a borrower leaves, of how long an owner waits, and for whom."""

from __future__ import annotations

from tidegate_events import events as e
from tidegate_events.frame import MAX_FRAME_BYTES, encode
from tidegate_events.resources import Resources
from tidegate_scheduler.draft import PASS_BYTES_MAX
from tidegate_scheduler.policy.parameters import Parameters

from tests.scheduler.elastic.lab import of
from tests.scheduler.elastic.lent import ask, borrower, granted, lending, owner, recalled, run
from tests.support.cluster import Cluster

MUCH = 10**7

# ---- what a pass holds ----


def large_gang(size: int, parameters: Parameters | None = None) -> Cluster:
    cluster = lending(parameters, cpu=MUCH, memory=size * 1100, gpus=0)
    run(cluster, "owner", owner(low=Resources(100, 100), high=Resources(100, size * 300)))
    run(cluster, "gang", borrower(low=Resources(100, 500), high=Resources(100, 1000), gang_size=size))
    return cluster


def entered(cluster: Cluster, gang: str) -> None:
    """All members enter what they were granted before anything else is decided."""
    for member in cluster.members(gang):
        cluster.node_fact(gang, member, e.PhaseChanged, phase=member.granted, _node=False)
    cluster.settle()


def test_a_gang_of_more_than_a_pass_decides_is_granted_in_one_pass_and_told_to_hand_back_in_one() -> None:
    size = 300
    cluster = large_gang(size)
    decided = ask(cluster, "gang", "learning", ranks=tuple(range(size)))
    assert len(of(decided, e.QuotaChanged)) == size > Parameters().decisions_per_pass_max
    assert all(member.granted == "learning" for member in cluster.members("gang"))
    entered(cluster, "gang")
    leased = [member.rank for member in cluster.members("gang") if member.leased is not None]
    told = of(ask(cluster, "owner", "learning"), e.HandBackRequested)
    assert [each.rank for each in told] == leased
    together = [of(list(recorded.frame.events), e.HandBackRequested) for recorded in cluster.frames]
    assert max(len(each) for each in together) == len(leased), (
        "who holds on, while others of its gang are told, would never be told"
    )
    assert max(len(encode(recorded.frame)) for recorded in cluster.frames) < MAX_FRAME_BYTES - PASS_BYTES_MAX


def test_who_asks_behind_a_gang_that_fills_a_pass_is_granted_in_the_next_one() -> None:
    cluster = lending(Parameters(decisions_per_pass_max=2), cpu=MUCH, memory=MUCH, gpus=0)
    run(cluster, "gang", borrower(high=Resources(500, 600), gang_size=5))
    run(cluster, "small", borrower(high=Resources(500, 600)))
    for rank in range(5):
        cluster.node_fact("gang", cluster.members("gang")[rank], e.PhaseRequested, phase="learning", _node=False)
    assert granted(ask(cluster, "small", "learning")) == {"gang": "learning", "small": "learning"}
    sizes = [len(recorded.frame.events) - 1 for recorded in cluster.frames[-2:]]
    assert sizes == [5, 1]


def test_a_recall_of_a_gang_fills_a_pass_and_no_more_than_one() -> None:
    cluster = lending(Parameters(decisions_per_pass_max=2), cpu=MUCH, memory=8000, gpus=0)
    run(cluster, "owner", owner(low=Resources(100, 100), high=Resources(100, 4000)))
    for name in ("one", "two"):
        run(cluster, name, borrower(low=Resources(100, 500), high=Resources(100, 1150), gang_size=3))
    for name in ("one", "two"):
        ask(cluster, name, "learning", ranks=(0, 1, 2))
        entered(cluster, name)
    before = len(cluster.frames)
    assert recalled(ask(cluster, "owner", "learning")) == {"one": "owner", "two": "owner"}
    told = [len(of(list(recorded.frame.events), e.HandBackRequested)) for recorded in cluster.frames[before:]]
    assert [each for each in told if each] == [2, 3], "one of the first gang has only what was nobody's"
