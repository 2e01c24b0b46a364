"""Bounds of lending: of what a pass holds, of how often a borrower leaves, of how long an owner waits, and for whom."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tidegate_events import events as e
from tidegate_events.frame import MAX_FRAME_BYTES, encode
from tidegate_events.resources import Resources
from tidegate_scheduler.draft import PASS_BYTES_MAX
from tidegate_scheduler.explain import explain
from tidegate_scheduler.policy.parameters import Parameters
from tidegate_scheduler.recall_changes import RECALLS_MAX, RECALLS_REST_NS

from tests.scheduler.elastic.lab import asked_to_leave, of
from tests.scheduler.elastic.lent import (
    GRACE,
    HAND_BACK,
    ask,
    borrower,
    enter,
    go,
    granted,
    hand_back,
    lending,
    lent_out,
    node,
    owner,
    recalled,
    run,
)
from tests.support.cluster import SECOND, Cluster, spec

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


# ---- for whom a lease is recalled ----


def withdraws(cluster: Cluster) -> None:
    ask(cluster, "owner", "")


def completes(cluster: Cluster) -> None:
    cluster.exit("owner", "completed")


def is_cancelled(cluster: Cluster) -> None:
    cluster.cancel("owner")
    cluster.settle()


def is_suspended(cluster: Cluster) -> None:
    cluster.ask(e.SuspendRequested, "owner")
    cluster.settle()


@pytest.mark.parametrize("gone", [withdraws, completes, is_cancelled, is_suspended])
def test_a_recall_is_withdrawn_when_nobody_waits_any_more(gone: Callable[[Cluster], None]) -> None:
    cluster = lent_out()
    ask(cluster, "owner", "learning")
    gone(cluster)
    member = cluster.members("borrower")[0]
    assert (member.hand_back_ns, member.hand_back_for) == (0, "")
    assert not asked_to_leave(cluster.advance(HAND_BACK)).get("borrower")
    assert cluster.stage("borrower") == "running"


def test_a_job_that_would_have_come_and_is_held_takes_its_recall_with_it() -> None:
    cluster = lent_out()
    cluster.exit("owner", "completed")
    cluster.submit(spec(100, memory=3000, gpus=2), "new")
    assert recalled(cluster.settle()) == {"borrower": "new"}
    cluster.ask(e.SuspendRequested, "new")
    cluster.settle()
    assert cluster.job("new").held
    assert not asked_to_leave(cluster.advance(HAND_BACK))
    assert cluster.members("borrower")[0].hand_back_ns == 0


def test_who_waits_beside_the_one_who_is_gone_is_who_it_leaves_for() -> None:
    cluster = lending(gpus=0, memory=9000, cpu=8000)
    for name in ("one", "two"):
        run(cluster, name, owner(high=Resources(500, 4000)))
    run(cluster, "borrower", borrower(high=Resources(500, 7500)))
    go(cluster, "borrower", "learning")
    assert recalled(ask(cluster, "one", "learning")) == {"borrower": "one"}
    cluster.advance(5)
    assert not recalled(ask(cluster, "two", "learning")), "it was told"
    ask(cluster, "one", "")
    assert asked_to_leave(cluster.advance(HAND_BACK - 5)) == {"borrower": "two"}


def test_who_left_for_what_it_kept_is_lent_nothing_until_it_has_rested() -> None:
    cluster = lent_out()
    ask(cluster, "owner", "learning")
    assert asked_to_leave(cluster.advance(HAND_BACK)) == {"borrower": "owner"}
    cluster.exit("borrower", "suspended", acknowledged=True)
    enter(cluster, "owner")
    cluster.start("borrower")
    assert (cluster.stage("borrower"), cluster.job("borrower").preemptions) == ("running", 1)
    go(cluster, "owner", "sampling")
    rests = Parameters().preemption_cooldown_seconds
    started_ns = cluster.job("borrower").started_ns
    assert not granted(ask(cluster, "borrower", "learning"))
    cluster.now = started_ns + (rests - 1) * SECOND
    assert not granted(cluster.settle())
    assert granted(cluster.advance(1)) == {"borrower": "learning"}


def test_who_is_close_to_its_end_hands_back_all_the_same() -> None:
    cluster = lending()
    run(cluster, "owner", owner())
    run(cluster, "borrower", borrower(expected_seconds=1000))
    cluster.advance(850)
    go(cluster, "borrower", "learning")
    ask(cluster, "owner", "learning")
    assert asked_to_leave(cluster.advance(HAND_BACK)) == {"borrower": "owner"}


# ---- how long an owner waits ----


def two_and_two() -> Cluster:
    """Two owners that lend, and two borrowers that each have what one of them lends."""
    cluster = lending(gpus=0, memory=9000, cpu=8000)
    for name in ("one", "two"):
        run(cluster, name, owner(high=Resources(500, 4000)))
    for name in ("early", "late"):
        run(cluster, name, borrower(high=Resources(500, 4000)))
    for name in ("early", "late"):
        go(cluster, name, "learning")
    cluster.advance(60)
    return cluster


def test_what_owners_need_together_is_recalled_at_once() -> None:
    cluster = two_and_two()
    told = recalled(ask(cluster, "one", "learning"))
    assert len(told) == 1
    told |= recalled(ask(cluster, "two", "learning"))
    assert sorted(told) == ["early", "late"]
    left = asked_to_leave(cluster.advance(HAND_BACK))
    assert sorted(left) == ["early", "late"]
    cluster.advance(GRACE)
    for name in left:
        cluster.exit(name, "suspended", acknowledged=True)
    assert [cluster.members(name)[0].granted for name in ("one", "two")] == ["learning", "learning"]


def test_who_comes_takes_nothing_of_what_an_owner_waits_for() -> None:
    cluster = two_and_two()
    cluster.exit("two", "completed")
    ask(cluster, "one", "learning")
    cluster.submit(spec(500, memory=4000), "new")
    cluster.settle()
    told = [cluster.members(name)[0].hand_back_ns > 0 for name in ("early", "late")]
    assert told == [True, True]
    first = next(name for name in ("late", "early") if cluster.members(name)[0].hand_back_for == "one")
    hand_back(cluster, first)
    assert cluster.members("one")[0].granted == "learning"
    assert cluster.stage("new") == "pending"


def test_who_comes_stays_where_it_is_recalled_for_it_though_another_node_becomes_the_tighter_one() -> None:
    cluster = lending(memory=9000)
    run(cluster, "owner-1", owner())
    run(cluster, "borrower-1", borrower(high=Resources(500, 600, 2)))
    go(cluster, "borrower-1", "learning")
    node(cluster, "n2", memory=9000)
    run(cluster, "owner-2", owner())
    run(cluster, "plug", spec(2400, memory=10))
    run(cluster, "borrower-2", borrower(high=Resources(500, 600, 2)))
    go(cluster, "borrower-2", "learning")
    for name in ("plug", "owner-1", "owner-2"):
        cluster.exit(name, "completed")
    run(cluster, "filler", spec(900, memory=900))
    cluster.submit(spec(500, memory=100, gpus=2), "new")
    assert recalled(cluster.settle()) == {"borrower-1": "new"}
    deadline_ns = cluster.members("borrower-1")[0].hand_back_ns
    run(cluster, "tight", spec(700, memory=7700))
    cluster.advance(3)
    assert not recalled(cluster.exit("filler", "completed")), "n2 is the tighter one now"
    assert cluster.job("new").reserved_nodes == ("n1",)
    cluster.now = deadline_ns
    assert asked_to_leave(cluster.settle()) == {"borrower-1": "new"}
    cluster.exit("borrower-1", "suspended", acknowledged=True)
    assert [member.node for member in cluster.members("new")] == ["n1"]


# ---- who comes at a time that was told ----


def reserved_behind_an_owner(*, leased: bool = False) -> Cluster:
    """A node whose owner leaves at 1000 s at the latest, for whoever has its room kept from then on."""
    cluster = lending()
    run(cluster, "owner", owner(time_limit_seconds=1000))
    run(cluster, "borrower", borrower())
    if leased:
        go(cluster, "borrower", "learning")
    cluster.submit(spec(1000, memory=2000, gpus=2), "new")
    cluster.settle()
    assert cluster.job("new").reserved_nodes == ("n1",)
    assert cluster.job("new").reserved_start_ns == cluster.job("owner").started_ns + 1000 * SECOND
    return cluster


@pytest.mark.parametrize("leased", [False, True])
def test_what_is_leased_is_back_when_the_one_comes_for_whom_room_is_kept(*, leased: bool) -> None:
    cluster = reserved_behind_an_owner(leased=leased)
    if not leased:
        go(cluster, "borrower", "learning")
    start_ns = cluster.job("new").reserved_start_ns
    due_ns = start_ns - (HAND_BACK + GRACE) * SECOND
    cluster.now = due_ns - 1
    assert not recalled(cluster.settle())
    assert cluster.wake_at == due_ns
    cluster.now = due_ns
    assert recalled(cluster.settle()) == {"borrower": "new"}
    assert asked_to_leave(cluster.advance(HAND_BACK)) == {"borrower": "new"}
    cluster.advance(GRACE)
    cluster.exit("borrower", "suspended", acknowledged=True)
    cluster.exit("owner", "completed")
    assert (cluster.stage("new"), cluster.now) == ("placed", start_ns)


def test_nothing_is_lent_that_could_not_be_back_by_then() -> None:
    cluster = reserved_behind_an_owner()
    cluster.now = cluster.job("new").reserved_start_ns - (HAND_BACK + GRACE) * SECOND + 1
    cluster.settle()
    assert not granted(ask(cluster, "borrower", "learning"))
    cluster.exit("owner", "completed")
    assert cluster.stage("new") == "placed"


# ---- shrinking before leaving ----


def beyond_its_floor() -> Cluster:
    """A borrower that learns with what nobody held."""
    cluster = lending()
    run(cluster, "borrower", borrower())
    go(cluster, "borrower", "learning")
    assert cluster.members("borrower")[0].extra == Resources(500, 3500, 2)
    cluster.advance(100)
    return cluster


@pytest.mark.parametrize("priority", [0, 5])
def test_what_a_borrower_has_beyond_its_floor_is_asked_back_before_anybody_leaves(priority: int) -> None:
    cluster = beyond_its_floor()
    cluster.submit(spec(500, memory=3000, priority=priority), "new")
    decided = cluster.settle()
    assert (recalled(decided), asked_to_leave(decided)) == ({"borrower": "new"}, {})
    assert cluster.job("new").reserved_start_ns == cluster.now + (HAND_BACK + GRACE) * SECOND
    assert not recalled(cluster.advance(5)), "it was told"
    hand_back(cluster)
    assert (cluster.stage("new"), cluster.stage("borrower")) == ("placed", "running")


def test_who_does_not_hand_it_back_leaves_for_who_comes() -> None:
    cluster = beyond_its_floor()
    cluster.submit(spec(500, memory=3000), "new")
    cluster.settle()
    cluster.submit(spec(100, memory=10), "small")
    cluster.advance(HAND_BACK - 1)
    assert cluster.members("borrower")[0].hand_back_ns == cluster.now + SECOND, "the sharing of CPU is no hand-back"
    assert asked_to_leave(cluster.advance(1)) == {"borrower": "new"}
    cluster.exit("borrower", "suspended", acknowledged=True)
    assert cluster.stage("new") == "placed"


def test_who_has_a_lower_priority_asks_nobody() -> None:
    cluster = lending()
    run(cluster, "borrower", borrower(priority=1))
    go(cluster, "borrower", "learning")
    cluster.submit(spec(500, memory=3000), "new")
    assert not recalled(cluster.settle())


def test_who_would_not_fit_all_the_same_asks_nobody() -> None:
    cluster = beyond_its_floor()
    cluster.submit(spec(500, memory=4501), "new")
    assert not recalled(cluster.settle())
    cluster.cancel("new")
    cluster.submit(spec(500, memory=3000), "other")
    assert recalled(cluster.settle()) == {"borrower": "other"}
    cluster.cancel("other")
    cluster.settle()
    assert cluster.members("borrower")[0].hand_back_ns == 0


# ---- who waits for others ----


def test_what_gathers_for_one_that_needs_more_does_not_idle_for_ever() -> None:
    cluster = lending(memory=20_000, cpu=16_000)
    for name, gpus in (("first", 1), ("large", 2), ("second", 1)):
        run(cluster, name, borrower(high=Resources(500, 600, gpus)))
    go(cluster, "first", "learning")
    ask(cluster, "large", "learning")
    cluster.advance(300)
    assert not granted(ask(cluster, "second", "learning")), "it was passed by for long enough"
    assert not granted(cluster.advance(599))
    assert cluster.wake_at == cluster.now + SECOND
    assert granted(cluster.advance(1)) == {"second": "learning"}


def test_a_member_that_waits_for_its_gang_says_who_has_not_asked() -> None:
    cluster = lending(memory=50_000, cpu=40_000, gpus=8)
    run(cluster, "gang", borrower(gang_size=3))
    ask(cluster, "gang", "learning", ranks=(0,))
    (why,) = explain(cluster.state, cluster.waiting, "gang").reasons
    assert why.detail.endswith("; its gang is granted it together, and these ranks have not asked yet: 1, 2")
    ask(cluster, "gang", "learning", ranks=(1, 2))
    assert explain(cluster.state, cluster.waiting, "gang").reasons == ()


def test_what_is_asked_back_beside_room_that_is_being_left_is_asked_back_once() -> None:
    cluster = beyond_its_floor()
    run(cluster, "leaves", spec(100, memory=900))
    cluster.cancel("leaves")
    cluster.submit(spec(500, memory=4000), "new")
    assert recalled(cluster.settle()) == {"borrower": "new"}
    assert not recalled(cluster.advance(1)), "it waits for both"
    cluster.exit("leaves", "stopped")
    hand_back(cluster)
    assert cluster.stage("new") == "placed"


def test_a_recall_that_was_taken_back_too_often_in_a_row_stands_for_a_while() -> None:
    cluster = lent_out()
    for _ in range(RECALLS_MAX - 1):
        assert recalled(ask(cluster, "owner", "learning")) == {"borrower": "owner"}
        assert recalled(ask(cluster, "owner", "")) == {"borrower": ""}
    assert recalled(ask(cluster, "owner", "learning")) == {"borrower": "owner"}
    assert not ask(cluster, "owner", ""), "it was told and told back for long enough"
    assert not ask(cluster, "owner", "learning"), "it is told already"
    assert not ask(cluster, "owner", "")
    assert not recalled(cluster.advance(RECALLS_REST_NS // SECOND - 1))
    assert recalled(cluster.advance(1)) == {"borrower": ""}
    assert recalled(ask(cluster, "owner", "learning")) == {"borrower": "owner"}
    assert recalled(ask(cluster, "owner", "")) == {"borrower": ""}, "they are counted anew"
