"""Shares of a device are lent and leased as whole devices are: what is one device's is granted as parts of that one."""

from __future__ import annotations

from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_scheduler.draft import Draft
from tidegate_scheduler.explain import explain
from tidegate_scheduler.policy.elastic.recall import Recalls, Wanted
from tidegate_scheduler.policy.elastic.trial import Trial
from tidegate_scheduler.policy.parameters import Parameters

from tests.scheduler.elastic.lab import asked_to_leave, looked_up, of
from tests.scheduler.elastic.lent import (
    GRACE,
    HAND_BACK,
    applied,
    ask,
    at,
    borrower,
    enter,
    go,
    granted,
    hand_back,
    lending,
    owner,
    recalled,
    run,
)
from tests.support.cluster import Cluster, spec

LOW = Resources(500, 500)


def needs(millis: int) -> Resources:
    return Resources(500, 500, gpu_millis=millis)


def lends(millis: int, least: int = 0) -> tuple[Resources, Resources]:
    """What an owner needs when it samples, and when it learns."""
    return needs(least), needs(millis)


def has(cluster: Cluster, job: str, rank: int = 0) -> tuple[tuple[int, ...], int, int]:
    """Return the devices that a member has, its share that was nobody's, and what is leased of it."""
    member = cluster.members(job)[rank]
    extra, leased = member.extra or Resources(), member.leased or Resources()
    return member.gpu_indices, extra.gpu_millis, leased.gpu_millis


# ---- where a share is found ----


def test_a_share_is_a_part_that_nobody_holds_before_a_whole_device_is_begun() -> None:
    cluster = lending(gpus=2)
    run(cluster, "plain", spec(100, memory=10, gpu_millis=600))
    run(cluster, "one", borrower(LOW, needs(400)))
    run(cluster, "two", borrower(LOW, needs(400)))
    (change,) = of(ask(cluster, "one", "learning"), e.QuotaChanged)
    assert (change.gpu_indices, change.gpu_millis) == ((0,), 400)
    assert has(cluster, "one") == ((0,), 400, 0)
    ask(cluster, "two", "learning")
    assert has(cluster, "two") == ((1,), 400, 0)
    cluster.submit(spec(100, memory=10, gpu_millis=300), "part")
    cluster.submit(spec(100, memory=10, gpus=1), "whole")
    cluster.submit(spec(100, memory=10, gpu_millis=300), "after")
    cluster.settle()
    assert cluster.stage("part") == "placed", "beside the one that has 400 of the second"
    assert cluster.stage("whole") == "pending"
    assert cluster.stage("after") == "pending", "either device might come free for the other, were it not for parts"


def test_a_device_that_is_kept_for_somebody_is_not_begun() -> None:
    cluster = lending(gpus=2)
    run(cluster, "borrower", borrower(LOW, needs(400)))
    run(cluster, "holder", spec(100, memory=10, gpus=1))
    cluster.submit(spec(100, memory=10, gpus=2), "waits")
    cluster.settle()
    assert cluster.job("waits").reserved_nodes == ("n1",)
    assert not granted(ask(cluster, "borrower", "learning"))


def test_what_is_beyond_the_floor_is_of_the_same_device() -> None:
    cluster = lending(gpus=2)
    run(cluster, "borrower", borrower(needs(300), needs(700)))
    run(cluster, "plain", spec(100, memory=10, gpu_millis=500))
    assert not granted(ask(cluster, "borrower", "learning")), "the other device is no use to it"
    cluster.exit("plain", "completed")
    assert has(cluster, "borrower") == ((0,), 400, 0)
    enter(cluster, "borrower")
    hand_back(cluster)
    assert has(cluster, "borrower") == ((0,), 0, 0), "its floor is there"


def test_a_share_beyond_the_ceiling_of_its_queue_is_not_granted() -> None:
    cluster = lending(gpus=1)
    cluster.ask(e.QueueChanged, tenant="t", ceiling=Resources(gpus=0, gpu_millis=300))
    run(cluster, "borrower", borrower(LOW, needs(400)))
    assert not granted(ask(cluster, "borrower", "learning"))


# ---- what owners lend ----


def test_an_owner_lends_what_its_phase_does_not_need_of_its_share_and_gets_it_back() -> None:
    cluster = lending(gpus=1)
    run(cluster, "owner", owner(*lends(800)))
    member = cluster.members("owner")[0]
    assert (member.gpu_indices, member.lent_gpus, member.lent_millis) == ((), (0,), 800)
    run(cluster, "borrower", borrower(LOW, needs(900)))
    (change,) = of(ask(cluster, "borrower", "learning"), e.QuotaChanged)
    assert (change.gpu_indices, change.gpu_millis) == ((0,), 900)
    assert change.reasons[0].numbers["leased_gpu_millis"] == 700
    assert has(cluster, "borrower") == ((0,), 200, 700)
    enter(cluster, "borrower")
    decided = ask(cluster, "owner", "learning")
    (told,) = of(decided, e.HandBackRequested)
    assert (told.job, told.deadline_ns, told.reasons[0].numbers["gpu_millis"]) == (
        "borrower",
        at(cluster, HAND_BACK),
        700,
    )
    (why,) = explain(cluster.state, cluster.waiting, "owner").reasons
    assert (why.code, why.numbers["gpu_millis_needed"]) == ("PhaseAsked", 800)
    assert granted(hand_back(cluster))["owner"] == "learning"
    member = cluster.members("owner")[0]
    assert (member.gpu_indices, member.lent_gpus, member.lent_millis) == ((0,), (), 0)


def test_who_keeps_a_leased_share_for_too_long_is_asked_to_leave() -> None:
    cluster = lending(gpus=1)
    run(cluster, "owner", owner(*lends(1000)))
    run(cluster, "borrower", borrower(LOW, needs(500)))
    go(cluster, "borrower", "learning")
    ask(cluster, "owner", "learning")
    assert not asked_to_leave(cluster.advance(HAND_BACK - 1))
    assert asked_to_leave(cluster.advance(1)) == {"borrower": "owner"}
    cluster.advance(GRACE)
    assert granted(cluster.exit("borrower", "suspended", acknowledged=True))["owner"] == "learning"


def test_an_owner_that_needs_less_keeps_its_device_and_lends_the_rest() -> None:
    cluster = lending(gpus=1)
    run(cluster, "owner", owner(*lends(900, 300)))
    member = cluster.members("owner")[0]
    assert (member.gpu_indices, member.lent_gpus, member.lent_millis) == ((0,), (), 600)
    run(cluster, "too-much", borrower(LOW, needs(701)))
    assert not granted(ask(cluster, "too-much", "learning"))
    run(cluster, "borrower", borrower(LOW, needs(700)))
    ask(cluster, "borrower", "learning")
    assert has(cluster, "borrower") == ((0,), 100, 600)


def test_what_nobody_leased_goes_back_at_once_and_of_what_is_leased_only_as_much_as_is_short() -> None:
    cluster = lending(gpus=1)
    run(cluster, "owner", owner(*lends(1000)))
    for name, millis in (("small", 200), ("large", 500)):
        run(cluster, name, borrower(LOW, needs(millis)))
        go(cluster, name, "learning")
    run(cluster, "other", owner(*lends(0)))
    assert recalled(ask(cluster, "owner", "learning")) == {"small": "owner", "large": "owner"}, "all of it is its own"


def test_a_share_is_recalled_from_the_one_that_has_enough() -> None:
    cluster = lending(gpus=1)
    run(cluster, "one", owner(*lends(300)))
    run(cluster, "two", owner(*lends(700)))
    for name, millis in (("small", 200), ("large", 500)):
        run(cluster, name, borrower(LOW, needs(millis)))
        go(cluster, name, "learning")
        cluster.advance(5)
    assert has(cluster, "large") == ((0,), 0, 500)
    assert recalled(ask(cluster, "two", "learning")) == {"large": "two"}, "with what is left there is enough"


def test_what_several_lend_of_one_device_is_leased_together_but_not_as_a_whole_one() -> None:
    cluster = lending(gpus=1)
    run(cluster, "one", owner(*lends(400)))
    run(cluster, "two", owner(*lends(600)))
    run(cluster, "whole", borrower(LOW, Resources(500, 500, 1)))
    assert not granted(ask(cluster, "whole", "learning"))
    run(cluster, "borrower", borrower(LOW, needs(1000)))
    go(cluster, "borrower", "learning")
    assert has(cluster, "borrower") == ((0,), 0, 1000)
    decided = ask(cluster, "one", "learning")
    assert recalled(decided) == {"borrower": "one"}
    assert not recalled(ask(cluster, "two", "learning")), "it is told already"
    assert granted(hand_back(cluster)) | {"borrower": ""} == {"one": "learning", "two": "learning", "borrower": ""}


def test_parts_of_two_devices_are_not_one_part() -> None:
    cluster = lending(gpus=2)
    run(cluster, "one", owner(*lends(600)))
    run(cluster, "two", owner(*lends(600)))
    for name in ("a", "b"):
        run(cluster, name, spec(100, memory=10, gpu_millis=400))
    run(cluster, "borrower", borrower(LOW, needs(700)))
    assert not granted(ask(cluster, "borrower", "learning")), "600 are lent of each"
    run(cluster, "less", borrower(LOW, needs(600)))
    assert granted(ask(cluster, "less", "learning")) == {"less": "learning"}


# ---- of whole devices that are lent ----


def test_a_whole_device_is_leased_in_parts_and_comes_back_when_all_have_handed_back() -> None:
    cluster = lending(gpus=1)
    run(cluster, "owner", owner(LOW, Resources(500, 500, 1)))
    for name in ("one", "two"):
        run(cluster, name, borrower(LOW, needs(500)))
        go(cluster, name, "learning")
        assert has(cluster, name) == ((0,), 0, 500)
    run(cluster, "whole", borrower(LOW, Resources(500, 500, 1)))
    assert not granted(ask(cluster, "whole", "learning"))
    assert recalled(ask(cluster, "owner", "learning")) == {"one": "owner", "two": "owner"}
    assert "owner" not in granted(hand_back(cluster, "one"))
    assert granted(hand_back(cluster, "two"))["owner"] == "learning"


def test_of_devices_that_are_leased_in_parts_those_of_the_fewest_are_recalled() -> None:
    cluster = lending(gpus=2)
    run(cluster, "owner", owner(Resources(500, 500), Resources(500, 500, 2)))
    run(cluster, "half", owner(LOW, Resources(500, 500)))
    for name, millis in (("one", 600), ("two", 700), ("three", 400)):
        run(cluster, name, borrower(LOW, needs(millis)))
        go(cluster, name, "learning")
    assert [has(cluster, name)[0] for name in ("one", "two", "three")] == [(0,), (1,), (0,)]
    cluster.exit("owner", "completed")
    cluster.submit(spec(100, memory=10, gpus=1), "comes")
    assert recalled(cluster.settle()) == {"two": "comes"}


# ---- when the lender has left ----


def lender_left(least: int) -> Cluster:
    """A borrower has so much of a device whose owner has left."""
    cluster = lending(gpus=1)
    run(cluster, "owner", owner(*lends(1000)))
    run(cluster, "borrower", borrower(LOW, needs(least)))
    go(cluster, "borrower", "learning")
    cluster.exit("owner", "completed")
    return cluster


def test_who_comes_has_what_is_left_of_a_device_at_once() -> None:
    cluster = lender_left(600)
    cluster.submit(spec(100, memory=10, gpu_millis=400), "comes")
    assert not recalled(cluster.settle())
    assert (cluster.stage("comes"), cluster.members("comes")[0].gpu_indices) == ("placed", (0,))


def test_who_needs_more_than_is_left_waits_until_it_is_handed_back() -> None:
    cluster = lender_left(600)
    cluster.submit(spec(100, memory=10, gpu_millis=401), "comes")
    assert recalled(cluster.settle()) == {"borrower": "comes"}
    assert cluster.stage("comes") == "pending"
    hand_back(cluster)
    assert cluster.stage("comes") == "placed"


def test_what_a_gang_waits_for_of_one_device_is_recalled_together() -> None:
    cluster = lending(gpus=1)
    run(cluster, "owner", owner(*lends(1000)))
    for name in ("one", "two"):
        run(cluster, name, borrower(LOW, needs(500)))
        go(cluster, name, "learning")
    cluster.exit("owner", "completed")
    cluster.submit(spec(100, memory=10, gpu_millis=400, gang=2), "gang")
    assert recalled(cluster.settle()).keys() == {"one", "two"}
    hand_back(cluster, "one")
    hand_back(cluster, "two")
    assert cluster.stage("gang") == "placed"


def test_who_comes_to_a_node_takes_of_what_is_recalled_for_others_first() -> None:
    cluster = lending(gpus=2)
    run(cluster, "owner", owner(LOW, Resources(500, 500, 2)))
    for name, millis in (("all", 1000), ("half", 500)):
        run(cluster, name, borrower(LOW, needs(millis)))
        go(cluster, name, "learning")
    cluster.exit("owner", "completed")
    for name in ("first", "second"):
        cluster.submit(spec(100, memory=10, gpu_millis=600), name)
    assert recalled(cluster.settle()) == {"all": "first", "half": "second"}, "600 and 600 are not one device's"


def test_what_is_leased_is_back_when_somebody_comes_at_a_time_that_was_told() -> None:
    cluster = lending(gpus=1)
    run(cluster, "owner", owner(*lends(1000), time_limit_seconds=1000))
    run(cluster, "borrower", borrower(LOW, needs(500)))
    go(cluster, "borrower", "learning")
    cluster.submit(spec(100, memory=10, gpu_millis=800), "comes")
    cluster.settle()
    start_ns = cluster.job("comes").reserved_start_ns
    assert start_ns, cluster.waiting.get("comes")
    seconds = (start_ns - cluster.now) // 10**9 - HAND_BACK - GRACE
    assert not recalled(cluster.advance(seconds - 1))
    assert recalled(cluster.advance(1)) == {"borrower": "comes"}


def test_a_share_that_was_nobodys_is_handed_back_for_a_whole_device_and_asked_for_once() -> None:
    cluster = lending(gpus=1)
    run(cluster, "borrower", borrower(LOW, needs(200)))
    go(cluster, "borrower", "learning")
    cluster.submit(spec(100, memory=10, gpus=1), "comes")
    assert recalled(cluster.settle()) == {"borrower": "comes"}
    assert not cluster.advance(1)
    hand_back(cluster)
    assert cluster.stage("comes") == "placed"


# ---- gangs, and who changes its mind ----


def test_members_of_a_gang_get_their_shares_together() -> None:
    cluster = lending(gpus=2)
    run(cluster, "owner", owner(*lends(1000)))
    run(cluster, "plain", spec(100, memory=10, gpus=1))
    run(cluster, "large", borrower(LOW, needs(600), gang_size=2))
    assert not granted(ask(cluster, "large", "learning", ranks=(0,)))
    assert not granted(ask(cluster, "large", "learning", ranks=(1,))), "600 and 600 are not one device's"
    run(cluster, "gang", borrower(LOW, needs(500), gang_size=2))
    assert not granted(ask(cluster, "gang", "learning", ranks=(0,)))
    changes = [each for each in of(ask(cluster, "gang", "learning", ranks=(1,)), e.QuotaChanged) if each.phase]
    assert [(each.rank, each.gpu_indices, each.gpu_millis) for each in changes] == [(0, (0,), 500), (1, (0,), 500)]


def test_who_leaves_a_phase_and_asks_for_it_again_at_once_is_granted_it_anew() -> None:
    cluster = lending(Parameters(lend_interval_seconds=0), gpus=1)
    run(cluster, "owner", owner(*lends(800)))
    run(cluster, "borrower", borrower(LOW, needs(900)))
    go(cluster, "borrower", "learning")
    member = cluster.members("borrower")[0]
    cluster.node_fact("borrower", member, e.PhaseChanged, phase="default", _node=False)
    changes = of(ask(cluster, "borrower", "learning"), e.QuotaChanged)
    assert [(each.gpu_millis, each.phase) for each in changes] == [(0, ""), (900, "learning")]
    assert has(cluster, "borrower") == ((0,), 200, 700)


def test_who_leaves_a_phase_with_whole_devices_and_asks_for_it_again_at_once_too() -> None:
    cluster = lending(Parameters(lend_interval_seconds=0), gpus=1)
    run(cluster, "owner", owner(LOW, Resources(500, 500, 1)))
    run(cluster, "borrower", borrower(LOW, Resources(500, 500, 1)))
    go(cluster, "borrower", "learning")
    member = cluster.members("borrower")[0]
    cluster.node_fact("borrower", member, e.PhaseChanged, phase="default", _node=False)
    ask(cluster, "borrower", "learning")
    applied(cluster, "borrower")
    member = cluster.members("borrower")[0]
    assert (member.gpu_indices, member.leased) == ((0,), Resources(gpus=1))


def test_room_that_needs_nobody_to_hand_back_is_asked_of_nobody() -> None:
    """Who was told to hand back leaves altogether, and somebody else has something to hand back elsewhere."""
    cluster = lending(gpus=1, memory=3500)
    run(cluster, "told", borrower(Resources(100, 500, gpu_millis=400), Resources(100, 3000, gpu_millis=400)))
    go(cluster, "told", "learning")
    cluster.submit(spec(100, memory=800, gpu_millis=200), "comes")
    assert recalled(cluster.settle()) == {"told": "comes"}
    cluster.submit(spec(100, memory=800, gpu_millis=200, priority=1), "urgent")
    cluster.settle()
    cluster.node("n2", 300, memory=3100, gpus=0)
    run(cluster, "other", borrower(Resources(100, 500), Resources(100, 3000)))
    go(cluster, "other", "learning")
    cluster.ask(e.SuspendRequested, "told")
    assert asked_to_leave(cluster.settle()) == {"told": ""}
    assert cluster.job("comes").reserved_nodes == cluster.job("urgent").reserved_nodes == ("n1",)


def test_no_device_is_begun_that_is_free_as_a_whole_where_one_that_was_has_as_much_to_spare() -> None:
    """What the owner lends of its part makes that device as good as the free one, which comes first by its number."""
    cluster = lending(gpus=2)
    run(cluster, "first", spec(100, memory=10, gpus=1))
    run(cluster, "owner", owner(*lends(400)))
    cluster.exit("first", "completed")
    run(cluster, "borrower", borrower(LOW, needs(500)))
    go(cluster, "borrower", "learning")
    assert has(cluster, "borrower") == ((1,), 500, 0)


def test_of_two_devices_that_is_recalled_which_fewer_have() -> None:
    """None of them alone has all that is wanted: of the one three have most, of the other one two have enough."""
    cluster = lending(cpu=8000, memory=20_000, gpus=2)
    for name in ("one", "two"):
        run(cluster, name, owner(*lends(1000)))
    for name, millis in (("a", 300), ("b", 300), ("c", 300), ("d", 250), ("e", 250)):
        run(cluster, name, borrower(LOW, needs(millis)))
        go(cluster, name, "learning")
    assert [has(cluster, name) for name in "acde"] == [((0,), 0, 300)] * 2 + [((1,), 0, 250)] * 2
    index = looked_up(cluster)
    draft, trial = Draft(cluster.state, cluster.now), Trial(index)
    Recalls(draft, trial).recall(index.table.rows["n1"], "comes", Wanted(0, {0: 500, 1: 400}, 1))
    assert set(recalled(draft.events)) == {"d", "e"}
    trial.undo()
