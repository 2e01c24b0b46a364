"""Where the cheapest way to make room for a job is barred, another one is found: others leave, or hand back, for it."""

from __future__ import annotations

from typing import Literal

import pytest
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_scheduler.policy.elastic import preempt
from tidegate_scheduler.policy.elastic.preempt import VICTIMS_MAX
from tidegate_scheduler.policy.parameters import Parameters

from tests.scheduler.elastic.lab import asked_to_leave, complete, elastic, leave, run
from tests.support.cluster import Cluster, spec

HOUR = 3600


@pytest.mark.parametrize("communication", ["loose", "intensive"])
def test_beside_a_large_node_of_a_protected_job_two_small_ones_are_cleared(
    communication: Literal["loose", "intensive"],
) -> None:
    cluster = elastic()
    cluster.node("large", 4000, switch="s")
    run(cluster, "protected", spec(4000, expected_seconds=1000))
    for name in "ab":
        cluster.node(name, 2000, switch="s")
        run(cluster, f"on-{name}", spec(2000))
    cluster.advance(900)
    cluster.submit(spec(2000, gang=2, priority=5, communication=communication), "gang")
    assert asked_to_leave(cluster.settle()) == {"on-a": "gang", "on-b": "gang"}


def test_also_where_who_is_on_the_large_one_left_as_often_as_it_may() -> None:
    cluster = elastic(Parameters(preemptions_max=1, preemption_cooldown_seconds=0))
    cluster.node("large", 4000)
    run(cluster, "spent", spec(4000))
    cluster.submit(spec(4000, priority=9), "once")
    cluster.settle()
    leave(cluster, "spent")
    complete(cluster, "once")
    cluster.start("spent")
    for name in "ab":
        cluster.node(name, 2000)
        run(cluster, f"on-{name}", spec(2000))
    cluster.submit(spec(2000, gang=2, priority=9), "gang")
    assert asked_to_leave(cluster.settle()) == {"on-a": "gang", "on-b": "gang"}


def test_a_tenant_reclaims_beside_a_large_node_that_it_holds_itself() -> None:
    cluster = elastic()
    cluster.ask(e.QueueChanged, tenant="owner", guaranteed=Resources(cpu_millis=8000))
    cluster.node("large", 4000)
    run(cluster, "own", spec(4000, tenant="owner"))
    for name in "ab":
        cluster.node(name, 2000)
        run(cluster, f"on-{name}", spec(2000, tenant="borrower"))
    cluster.submit(spec(2000, gang=2, tenant="owner"), "gang")
    assert asked_to_leave(cluster.settle()) == {"on-a": "gang", "on-b": "gang"}


def reclaiming() -> Cluster:
    """The cheapest two are both of a tenant that may give one of them only; two others give back what they borrowed.

    Of four nodes, two have the memory that a larger gang needs.
    """
    cluster = elastic(Parameters(reservations_max=1))
    cluster.ask(e.QueueChanged, tenant="owner", guaranteed=Resources(cpu_millis=20_000))
    cluster.ask(e.QueueChanged, tenant="has-its-own", guaranteed=Resources(cpu_millis=4000))
    for number, (memory, tenant) in enumerate(
        [(4000, "has-its-own"), (4000, "has-its-own"), (16_000, "x"), (16_000, "x")]
    ):
        cluster.node(f"n{number}", 4000, memory=memory)
        run(cluster, f"on-{number}", spec(4000, memory=memory, tenant=tenant))
    cluster.advance(HOUR)
    for number in range(2):
        cluster.save(f"on-{number}", 1)
    return cluster


def test_where_the_cheapest_may_not_all_leave_together_others_do() -> None:
    cluster = reclaiming()
    cluster.submit(spec(4000, memory=1000, gang=2, tenant="owner"), "gang")
    asked = asked_to_leave(cluster.settle())
    assert set(asked.values()) == {"gang"}
    assert len(asked) == 2, "none for nothing, and not one of those who would do alone"
    assert len(asked.keys() & {"on-0", "on-1"}) <= 1, "that tenant keeps what it was guaranteed"


def test_one_that_would_have_to_clear_too_many_clears_another_node() -> None:
    cluster = elastic()
    cluster.node("crowded", 80_000, memory=80 * 64)
    for number in range(80):
        cluster.submit(spec(1000, memory=64), f"small-{number:02}")
    cluster.settle()
    for number in range(80):
        cluster.start(f"small-{number:02}")
    cluster.node("other", 80_000, memory=100_000)
    run(cluster, "large", spec(80_000, memory=100_000))
    cluster.advance(HOUR)
    for number in range(80):
        cluster.save(f"small-{number:02}", 1)
    cluster.submit(spec(75_000, memory=64, priority=5), "job")
    assert asked_to_leave(cluster.settle()) == {"large": "job"}


def test_among_more_than_may_leave_one_node_the_one_that_would_do_alone_is_found() -> None:
    cluster = elastic()
    cluster.node("crowded", 80_000, memory=100_000)
    run(cluster, "large", spec(70_000, memory=64))
    for number in range(VICTIMS_MAX + 2):
        cluster.submit(spec(100, memory=64), f"small-{number:02}")
    cluster.settle()
    cluster.advance(HOUR)
    for number in range(VICTIMS_MAX + 2):
        cluster.start(f"small-{number:02}")
    cluster.submit(spec(70_000, memory=64, priority=5), "job")
    assert asked_to_leave(cluster.settle()) == {"large": "job"}, "though all others have less to lose"


def test_domains_that_turn_out_not_to_hold_a_gang_hide_none_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below each switch but the last one of two jobs is protected: more offers than a plan compares."""
    monkeypatch.setattr(preempt, "OFFERS_MAX", 0)
    cluster = elastic()
    for switch in range(4):
        for number in range(2):
            cluster.node(f"s{switch}n{number}", 1000, switch=f"s{switch}")
            protected = number == 1 and switch < 3
            run(cluster, f"on-s{switch}n{number}", spec(1000, expected_seconds=1000 if protected else None))
    cluster.advance(900)
    cluster.submit(spec(1000, gang=2, priority=9, communication="intensive"), "gang")
    assert asked_to_leave(cluster.settle()) == {"on-s3n0": "gang", "on-s3n1": "gang"}


def test_of_a_tenant_that_gives_back_those_who_leave_by_their_priority_count_too() -> None:
    cluster = elastic()
    cluster.ask(e.QueueChanged, tenant="owner", guaranteed=Resources(cpu_millis=20_000))
    cluster.ask(e.QueueChanged, tenant="other", guaranteed=Resources(cpu_millis=4000))
    for name, priority in (("low", 0), ("equal", 5)):
        cluster.node(name, 4000)
        run(cluster, f"on-{name}", spec(4000, tenant="other", priority=priority))
    cluster.submit(spec(4000, gang=2, tenant="owner", priority=5), "gang")
    assert asked_to_leave(cluster.settle()) == {}, "it would be left with nothing of the 4 that it was guaranteed"
    cluster.cancel("gang")
    cluster.submit(spec(4000, tenant="owner", priority=5), "one")
    assert asked_to_leave(cluster.settle()) == {"on-low": "one"}


@pytest.mark.parametrize("in_one_pass", [True, False])
def test_a_tenant_reclaims_no_more_than_it_was_guaranteed_for_all_who_wait(*, in_one_pass: bool) -> None:
    cluster = elastic(Parameters(preemption_cooldown_seconds=0))
    cluster.ask(e.QueueChanged, tenant="owner", guaranteed=Resources(cpu_millis=4000))
    for name in "ab":
        cluster.node(name, 4000)
        run(cluster, f"on-{name}", spec(4000, tenant="other"))
    cluster.submit(spec(4000, tenant="owner", memory=500), "first")
    asked = {} if in_one_pass else asked_to_leave(cluster.settle())
    cluster.submit(spec(4000, tenant="owner", memory=400), "second")
    asked |= asked_to_leave(cluster.settle()) | asked_to_leave(cluster.advance(60))
    assert asked == {"on-a": "first"}


def test_gangs_that_no_move_helps_keep_none_behind_them_from_its_turn() -> None:
    cluster = elastic(Parameters(preemption_cooldown_seconds=0))
    for name in ("a0", "a1"):
        cluster.node(name, 4000, gpus=2)
    for name in ("moves-0", "ends-0", "moves-1", "ends-1"):
        run(cluster, name, spec(1000, gpus=1, time_limit_seconds=80_000))
    for number in range(4):
        cluster.node(f"b{number}", 4000, gpus=2, gpu_memory=99_000)
        for name in (f"ends-b{number}", f"stuck-{number}"):
            run(cluster, name, spec(1000, gpus=1, gpu_memory=99_000, time_limit_seconds=80_000))
    for name in ("ends-0", "ends-1", *(f"ends-b{number}" for number in range(4))):
        cluster.exit(name, "completed")
    cluster.advance(100)
    for number in range(2):
        cluster.save(f"moves-{number}", 1)
    for number in range(3):
        cluster.submit(spec(100, memory=600 + number, gpus=2, gpu_memory=99_000, expected_seconds=5000))
        cluster.settle()
    cluster.submit(spec(100, gpus=2, expected_seconds=30_000), "gang")
    asked = asked_to_leave(cluster.settle())
    for _ in range(60):
        asked |= asked_to_leave(cluster.advance(1))
    assert set(asked.values()) == {"gang"}
    assert len(asked) == 1


def test_offers_of_which_only_one_may_be_taken_hide_none_that_others_make(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant on many nodes gives back one job of all of these; those of another one are on the nodes after."""
    monkeypatch.setattr(preempt, "OFFERS_MAX", 0)
    cluster = elastic()
    cluster.ask(e.QueueChanged, tenant="owner", guaranteed=Resources(cpu_millis=8000))
    cluster.ask(e.QueueChanged, tenant="has-most", guaranteed=Resources(cpu_millis=5000))
    for number in range(9):
        cluster.node(f"n{number}", 1000)
        run(cluster, f"on-{number}", spec(1000, tenant="has-most" if number < 6 else "borrower"))
    cluster.submit(spec(1000, gang=3, tenant="owner"), "gang")
    asked = asked_to_leave(cluster.settle())
    assert len(asked) == 3
    assert len(asked.keys() & {f"on-{number}" for number in range(6)}) <= 1


def test_where_the_cheapest_would_take_all_that_a_tenant_may_give_two_smaller_ones_do() -> None:
    cluster = elastic()
    cluster.ask(e.QueueChanged, tenant="owner", guaranteed=Resources(cpu_millis=20_000))
    cluster.ask(e.QueueChanged, tenant="other", guaranteed=Resources(cpu_millis=4000))
    for name, cpu in (("large", 4000), ("small-1", 2000), ("small-2", 2000)):
        cluster.node(name, cpu, memory=4000)
        run(cluster, f"on-{name}", spec(cpu, memory=4000, tenant="other"))
    cluster.advance(HOUR)
    cluster.save("on-large", 1)
    cluster.submit(spec(2000, memory=4000, gang=2, tenant="owner"), "gang")
    assert asked_to_leave(cluster.settle()) == {"on-small-1": "gang", "on-small-2": "gang"}
