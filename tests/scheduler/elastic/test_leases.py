"""Phases that are asked for: an owner gets its own back within its bound, and what is lent goes to who asked first."""

from __future__ import annotations

from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_scheduler.explain import explain

from tests.scheduler.elastic.lab import asked_to_leave, of
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
    lent_out,
    mib,
    node,
    owner,
    recalled,
    refused,
    run,
)
from tests.support.cluster import Cluster, spec

# ---- borrowing ----


def test_a_borrower_gets_what_nobody_holds_and_then_it_holds_it() -> None:
    cluster = lending()
    run(cluster, "borrower", borrower())
    assert granted(ask(cluster, "borrower", "learning")) == {"borrower": "learning"}
    member = cluster.members("borrower")[0]
    assert (member.leased, member.extra) == (None, Resources(500, 3500, 2))
    assert (mib(cluster, "borrower"), member.gpu_indices) == (4000, (0, 1))
    enter(cluster, "borrower")
    cluster.submit(spec(100, memory=1001), "other")
    cluster.settle()
    assert cluster.stage("other") == "pending", "1000 MiB are left beside 4000 of 5000"
    hand_back(cluster)
    assert (cluster.stage("other"), mib(cluster, "borrower")) == ("placed", 500)
    assert cluster.members("borrower")[0].extra is None


def test_a_borrower_gets_what_an_owner_lends_while_it_samples() -> None:
    cluster = lending()
    run(cluster, "owner", owner())
    assert cluster.members("owner")[0].lent_gpus == (0, 1)
    assert mib(cluster, "owner") == 500, "a phase has what it needs, and no more"
    run(cluster, "borrower", borrower())
    decided = ask(cluster, "borrower", "learning")
    (change,) = of(decided, e.QuotaChanged)
    assert (change.phase, change.gpu_indices) == ("learning", (0, 1))
    assert (change.leased, change.extra) == (Resources(0, 3000, 2), Resources(500, 500, 0))
    assert change.reasons[0].code == "PhaseGranted"
    assert change.reasons[0].numbers == {"leased_mib": 3000, "leased_gpus": 2, "leased_millis": 0}


def test_all_or_nothing() -> None:
    cluster = lending(gpus=2)
    run(cluster, "device", spec(100, memory=10, gpus=1))
    run(cluster, "borrower", borrower())
    assert not ask(cluster, "borrower", "learning"), "one of two devices is no use"
    assert mib(cluster, "borrower") == 500
    cluster.exit("device", "completed")
    assert cluster.members("borrower")[0].granted == "learning"


def test_a_phase_that_is_no_longer_asked_for_is_not_granted_and_what_was_granted_is_taken_back() -> None:
    cluster = lending()
    run(cluster, "owner", owner())
    run(cluster, "borrower", borrower())
    ask(cluster, "borrower", "learning")
    ask(cluster, "borrower", "")
    applied(cluster, "borrower")
    member = cluster.members("borrower")[0]
    assert (member.granted, member.leased, member.extra, member.gpu_indices) == ("", None, None, ())
    assert (mib(cluster, "borrower"), member.held_mib) == (500, 0)


def test_memory_is_lent_only_when_the_kernel_holds_the_lower_limit() -> None:
    cluster = lending()
    run(cluster, "owner", owner())
    go(cluster, "owner", "learning")
    run(cluster, "borrower", borrower())
    ask(cluster, "borrower", "learning")
    ask(cluster, "owner", "sampling")
    assert not granted(enter(cluster, "owner"))
    assert (mib(cluster, "owner"), cluster.members("owner")[0].held_mib) == (500, 4000)
    assert not granted(refused(cluster, "owner", 2000)), "what the kernel kept is not there"
    assert cluster.members("owner")[0].held_mib == 2000
    assert not granted(cluster.advance(3600))
    assert granted(applied(cluster, "owner")) == {"borrower": "learning"}


def test_what_nobody_knows_yet_of_a_start_is_not_lent() -> None:
    cluster = lending()
    run(cluster, "borrower", borrower())
    cluster.submit(owner(), "owner")
    cluster.settle()
    assert (mib(cluster, "owner"), cluster.members("owner")[0].held_mib) == (500, 4000)
    assert not granted(ask(cluster, "borrower", "learning")), "its node may enforce no limits"
    cluster.start("owner")
    assert not granted(cluster.settle())
    assert not granted(unenforced(cluster, "owner"))
    cluster.exit("owner", "completed")
    cluster.advance(5)
    assert cluster.members("borrower")[0].granted == "learning"


def test_what_a_start_confirms_is_lent() -> None:
    cluster = lending()
    run(cluster, "borrower", borrower())
    cluster.submit(owner(), "owner")
    cluster.settle()
    cluster.start("owner")
    assert not granted(ask(cluster, "borrower", "learning"))
    assert granted(applied(cluster, "owner")) == {"borrower": "learning"}


def test_an_owner_need_not_wait_for_what_is_its_own_from_the_start() -> None:
    cluster = lending()
    cluster.submit(owner(), "owner")
    cluster.settle()
    cluster.start("owner")
    assert granted(ask(cluster, "owner", "learning")) == {"owner": "learning"}
    assert cluster.members("owner")[0].held_mib == 0, "its limit says so itself"


def unenforced(cluster: Cluster, job: str) -> list[e.AnyEvent]:
    """What a node says of limits that nothing there enforces."""
    member = cluster.members(job)[0]
    cluster.node_fact(job, member, e.QuotaApplied, quotas=member.quotas, enforced=False)
    return cluster.settle()


def test_memory_is_not_lent_where_nothing_enforces_limits() -> None:
    cluster = lending()
    cluster.submit(owner(), "owner")
    cluster.settle()
    cluster.start("owner")
    unenforced(cluster, "owner")
    assert (mib(cluster, "owner"), cluster.members("owner")[0].held_mib) == (500, 4000), (
        "whatever its phase, from the start"
    )
    run(cluster, "borrower", borrower())
    assert not granted(ask(cluster, "borrower", "learning"))
    assert granted(ask(cluster, "owner", "learning")) == {"owner": "learning"}, "it has its own"
    enter(cluster, "owner")
    unenforced(cluster, "owner")
    assert cluster.members("owner")[0].held_mib == 0, "its limit says so itself"
    ask(cluster, "owner", "sampling")
    cluster.node_fact("owner", cluster.members("owner")[0], e.PhaseChanged, phase="sampling", _node=False)
    cluster.settle()
    assert not granted(unenforced(cluster, "owner"))
    assert (mib(cluster, "owner"), cluster.members("owner")[0].held_mib) == (500, 4000)
    assert granted(applied(cluster, "owner")) == {"borrower": "learning"}, "a kernel that enforces gives it back"


def test_devices_are_lent_where_nothing_enforces_limits() -> None:
    cluster = lending(memory=9000)
    run(cluster, "owner", owner())
    unenforced(cluster, "owner")
    run(cluster, "borrower", borrower())
    assert granted(ask(cluster, "borrower", "learning")) == {"borrower": "learning"}
    member = cluster.members("borrower")[0]
    assert (member.leased, member.gpu_indices) == (Resources(0, 0, 2), (0, 1))


def test_what_was_refused_in_part_is_lent_in_part() -> None:
    cluster = lending()
    run(cluster, "owner", owner())
    go(cluster, "owner", "learning")
    run(cluster, "borrower", borrower(high=Resources(500, 1500)))
    ask(cluster, "borrower", "learning")
    ask(cluster, "owner", "sampling")
    enter(cluster, "owner")
    assert granted(refused(cluster, "owner", 3500)) == {"borrower": "learning"}, "1000 of 5000 beside 3500 and 500"


def test_jobs_that_are_told_lend_no_memory() -> None:
    cluster = lending()
    run(cluster, "told", owner(phase_entry="told"))
    assert (mib(cluster, "told"), cluster.members("told")[0].lent_gpus) == (4000, ())
    run(cluster, "borrower", borrower())
    assert not ask(cluster, "borrower", "learning")


# ---- an owner asks ----


def test_an_owner_enters_at_once_where_nobody_has_what_it_lends() -> None:
    cluster = lending()
    run(cluster, "owner", owner())
    assert granted(ask(cluster, "owner", "learning")) == {"owner": "learning"}
    member = cluster.members("owner")[0]
    assert (mib(cluster, "owner"), member.gpu_indices, member.lent_gpus) == (4000, (0, 1), ())
    enter(cluster, "owner")
    assert cluster.members("owner")[0].phase == "learning"


def test_who_hands_back_in_time_goes_on() -> None:
    cluster = lent_out()
    decided = ask(cluster, "owner", "learning")
    (told,) = of(decided, e.HandBackRequested)
    assert (told.job, told.for_job, told.deadline_ns) == ("borrower", "owner", at(cluster, HAND_BACK))
    assert told.reasons[0].code == "LeaseRecalled"
    assert not granted(decided)
    assert granted(hand_back(cluster))["owner"] == "learning"
    member = cluster.members("borrower")[0]
    assert (member.hand_back_ns, member.hand_back_for, member.leased) == (0, "", None)
    assert not cluster.advance(HAND_BACK + 1)
    assert cluster.stage("borrower") == "running"


def test_who_says_that_it_cannot_hand_back_is_asked_to_leave_at_once() -> None:
    cluster = lent_out()
    failure = e.Reason(code="DevicesNotFreed", detail="the release hook raised ValueError('x')")

    def fail(job: str) -> list[e.AnyEvent]:
        member = cluster.members(job)[0]
        cluster.node_fact(job, member, e.HandBackFailed, phase="learning", reason=failure, _node=False)
        return cluster.settle()

    assert not asked_to_leave(fail("borrower")), "nothing is recalled"
    ask(cluster, "owner", "learning")
    cluster.advance(1)
    assert not asked_to_leave(fail("owner")), "of the owner nothing is"
    (asked,) = of(fail("borrower"), e.PreemptRequested)
    assert (asked.job, asked.deadline_ns, asked.for_job) == ("borrower", at(cluster, GRACE), "owner")
    assert asked.reasons[0].code == "LeaseNotReturned"
    assert not fail("borrower"), "once"


def test_who_does_not_is_asked_to_save_and_leave_and_the_owner_waits_no_longer_than_both_bounds() -> None:
    cluster = lent_out()
    ask(cluster, "owner", "learning")
    assert not asked_to_leave(cluster.advance(HAND_BACK - 1))
    decided = cluster.advance(1)
    (asked,) = of(decided, e.PreemptRequested)
    assert (asked.job, asked.deadline_ns, asked.for_job) == ("borrower", at(cluster, GRACE), "owner")
    assert asked.reasons[0].code == "LeaseNotReturned"
    cluster.now += GRACE * 1_000_000_000
    assert granted(cluster.exit("borrower", "suspended", acknowledged=True))["owner"] == "learning"
    assert cluster.job("borrower").preemptions == 1


def test_who_cannot_give_back_memory_is_asked_to_leave() -> None:
    cluster = lent_out()
    ask(cluster, "owner", "learning")
    ask(cluster, "borrower", "sampling")
    enter(cluster, "borrower")
    assert not granted(refused(cluster, "borrower", 3000))
    assert cluster.members("borrower")[0].hand_back_ns == at(cluster, HAND_BACK), (
        "it has left its phase, not its memory"
    )
    assert asked_to_leave(cluster.advance(HAND_BACK)) == {"borrower": "owner"}
    assert granted(cluster.exit("borrower", "suspended"))["owner"] == "learning"


def test_memory_that_is_given_back_late_but_in_time_is_enough() -> None:
    cluster = lent_out()
    ask(cluster, "owner", "learning")
    ask(cluster, "borrower", "sampling")
    enter(cluster, "borrower")
    refused(cluster, "borrower", 3000)
    cluster.advance(HAND_BACK - 1)
    assert granted(applied(cluster, "borrower"))["owner"] == "learning"
    assert not asked_to_leave(cluster.advance(GRACE))


def test_only_what_is_in_the_way_is_recalled_from_the_fewest_and_the_latest() -> None:
    cluster = lending(memory=9000, cpu=8000, gpus=4)
    run(cluster, "owner", owner(high=Resources(1000, 6500, 4)))
    for name in ("first", "second", "third"):
        run(cluster, name, borrower(high=Resources(500, 500, 1)))
        go(cluster, name, "learning")
        cluster.advance(5)
    run(cluster, "small", owner(high=Resources(500, 500)))
    assert recalled(ask(cluster, "owner", "learning")) == {"first": "owner", "second": "owner", "third": "owner"}


def test_the_one_that_covers_it_is_recalled_alone() -> None:
    cluster = lending(memory=9000, cpu=8000, gpus=3)
    run(cluster, "one", owner(high=Resources(500, 500, 1)))
    run(cluster, "two", owner(high=Resources(500, 500, 2)))
    run(cluster, "early", borrower(high=Resources(500, 500, 1)))
    run(cluster, "late", borrower(high=Resources(500, 500, 2)))
    go(cluster, "early", "learning")
    go(cluster, "late", "learning")
    assert cluster.members("early")[0].gpu_indices == (0,), "of the one who came first"
    assert recalled(ask(cluster, "two", "learning")) == {"late": "two"}


def test_cpu_is_taken_back_at_once() -> None:
    cluster = lending(cpu=1500)
    run(cluster, "owner", owner(high=Resources(1000, 500)))
    run(cluster, "borrower", borrower(high=Resources(1000, 500)))
    go(cluster, "borrower", "learning")
    assert cluster.members("borrower")[0].leased == Resources(500)
    decided = ask(cluster, "owner", "learning")
    assert granted(decided) == {"owner": "learning"}
    assert not recalled(decided)
    assert [cluster.members(job)[0].quotas[0].cpu_millis for job in ("owner", "borrower")] == [1000, 500]


def test_who_waits_for_its_phase_says_for_what_and_for_whom() -> None:
    cluster = lent_out()
    assert explain(cluster.state, cluster.waiting, "owner").reasons == ()
    ask(cluster, "owner", "learning")
    (why,) = explain(cluster.state, cluster.waiting, "owner").reasons
    assert (why.code, why.detail) == (
        "PhaseAsked",
        "waits to enter learning; borrower shall hand back what is leased",
    )
    assert why.numbers == {
        "rank": 0,
        "memory_mib_needed": 3500,
        "gpus_needed": 2,
        "hand_back_ns": at(cluster, HAND_BACK),
    }
    hand_back(cluster)
    assert explain(cluster.state, cluster.waiting, "owner").reasons == ()


# ---- gangs ----


def a_gang(*names: str) -> Cluster:
    """Two nodes with an owner each, and a gang of borrowers over both."""
    cluster = lending(memory=5000)
    node(cluster, "n2", memory=5000)
    for name in names:
        run(cluster, name, owner())
    run(cluster, "gang", borrower(gang_size=2, low=Resources(500, 600), high=Resources(500, 4000, 2)))
    assert {member.node for member in cluster.members("gang")} == {"n1", "n2"}
    return cluster


def test_a_gang_is_granted_together_and_only_when_all_have_asked() -> None:
    cluster = a_gang("one", "two")
    assert not ask(cluster, "gang", "learning", ranks=(0,)), "it would hold and wait"
    decided = ask(cluster, "gang", "learning", ranks=(1,))
    assert [(each.rank, each.phase) for each in of(decided, e.QuotaChanged)] == [(0, "learning"), (1, "learning")]


def test_a_gang_of_which_one_member_finds_nothing_gets_nothing() -> None:
    cluster = a_gang("one", "two")
    go(cluster, "two", "learning")
    assert not granted(ask(cluster, "gang", "learning", ranks=(0, 1)))
    assert all(member.leased is None for member in cluster.members("gang"))
    ask(cluster, "two", "sampling")
    enter(cluster, "two")
    decided = applied(cluster, "two")
    assert [each.rank for each in of(decided, e.QuotaChanged) if each.phase] == [0, 1]


def test_a_gang_hands_back_together() -> None:
    cluster = a_gang("one", "two")
    ask(cluster, "gang", "learning", ranks=(0, 1))
    for rank in (0, 1):
        enter(cluster, "gang", rank=rank)
    decided = ask(cluster, "two", "learning")
    assert [(each.rank, each.for_job) for each in of(decided, e.HandBackRequested)] == [(0, "two"), (1, "two")]
