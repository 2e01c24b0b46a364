"""Who needs no less than one who found no room is not tried, and nothing else is decided for that."""

from __future__ import annotations

import random

import pytest
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_events.spec import Component, JobSpec, ResourceRange
from tidegate_scheduler.decide import Pass, decide
from tidegate_scheduler.policy.elastic import preempt
from tidegate_scheduler.policy.elastic.extents import extent_of
from tidegate_scheduler.policy.elastic.nowhere import SMALLER_MAX, Nowhere, Right
from tidegate_scheduler.policy.elastic.shapes import Fit, Shape
from tidegate_scheduler.policy.elastic.table import NodeTable
from tidegate_scheduler.policy.parameters import Parameters

from tests.scheduler.elastic.lab import asked_to_leave, elastic, run
from tests.support.cluster import Cluster, spec

RIGHT = Right(5)


def fit(cpu_millis: int = 1000, memory_mib: int = 100, gang_size: int = 1, **more: object) -> Fit:
    need = Resources(cpu_millis, memory_mib, **{name: more.pop(name, 0) for name in ("gpus", "gpu_millis")})  # type: ignore[arg-type]
    shape = {"isolation": "trusted", "image": "host", "need": need, "gang_size": gang_size} | more
    return Fit(Shape(**shape), NodeTable())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("larger", "ruled_out"),
    [
        (fit(), True),
        (fit(1001, 101, 2), True),
        (fit(gpus=1), True),
        (fit(phases=(Resources(10, 10),)), True),
        (fit(999), False),
        (fit(memory_mib=99), False),
        (fit(image="other"), False),
        (fit(isolation="guarded"), False),
        (fit(gang_size=2, intensive=True), False),
        (fit(gpu_models=("H",), gpus=1), False),
        (fit(cpu_model="old"), False),
    ],
)
def test_one_that_is_alike_but_for_more_is_ruled_out(larger: Fit, *, ruled_out: bool) -> None:
    nowhere = Nowhere()
    assert nowhere.rules_out_larger(larger, lambda: RIGHT) is None
    nowhere.add(fit(), RIGHT, tried=True, hopeless=True)
    assert nowhere.rules_out_larger(larger, lambda: RIGHT) is (True if ruled_out else None)


def test_a_share_of_a_device_is_not_less_than_a_whole_one() -> None:
    """It may find no room where only whole devices are free that others broke up first, or the other way about."""
    nowhere = Nowhere()
    nowhere.add(fit(gpu_millis=500), RIGHT, tried=True, hopeless=True)
    assert nowhere.rules_out_larger(fit(gpus=1), lambda: RIGHT) is None
    assert nowhere.rules_out_larger(fit(gpu_millis=501), lambda: RIGHT) is True


def test_a_borrower_needs_as_much_as_its_largest_phase() -> None:
    nowhere = Nowhere()
    nowhere.add(fit(phases=(Resources(3000, 10, gpus=1),)), RIGHT, tried=True, hopeless=True)
    assert nowhere.rules_out_larger(fit(2000, gpus=1), lambda: RIGHT) is None
    assert nowhere.rules_out_larger(fit(3000, gpus=1), lambda: RIGHT) is True


def test_who_has_more_right_is_tried_and_so_is_one_for_whom_others_might_leave() -> None:
    nowhere = Nowhere()
    nowhere.add(fit(), RIGHT, tried=False, hopeless=False)
    assert nowhere.rules_out_larger(fit(2000), lambda: Right(6)) is None
    assert nowhere.rules_out_larger(fit(2000), lambda: Right(5, 60)) is None
    assert nowhere.rules_out_larger(fit(2000), lambda: Right(4)) is False
    assert not nowhere.rules_out(fit().shape, lambda: Right(4)), "another of its shape may have its turn"
    nowhere.add(fit(), Right(4), tried=True, hopeless=False)
    assert nowhere.rules_out(fit().shape, lambda: Right(4))
    assert nowhere.rules_out_larger(fit(2000), lambda: Right(4)) is False, "for a larger one others may leave"
    nowhere.add(fit(), Right(4), tried=True, hopeless=True)
    assert nowhere.rules_out_larger(fit(2000), lambda: Right(4)) is True


def test_the_extent_of_one_that_holds_less_than_a_phase_lies_between() -> None:
    extent = extent_of(fit(1000, phases=(Resources(10, 900, gpus=2),)).shape)
    assert extent.held == (1000, 100, 0, 0, 0, 1)
    assert extent.most == (1000, 900, 2, 0, 0, 1)


def test_where_hardly_one_is_larger_than_another_no_more_than_some_are_compared() -> None:
    nowhere = Nowhere()
    for number in range(SMALLER_MAX):
        nowhere.add(fit(1000 + number, 1000 - number), RIGHT, tried=True, hopeless=True)
    nowhere.add(fit(1, 1), RIGHT, tried=True, hopeless=True)
    assert nowhere.rules_out_larger(fit(5, 5), lambda: RIGHT) is None, "it is asked, which decides the same"
    assert nowhere.rules_out_larger(fit(1010, 990), lambda: RIGHT) is True


# ---- a smaller one that finds nothing says nothing of others ----


def behind_a_blocked_one(cluster: Cluster) -> Cluster:
    """Let the one reservation that there may be be that of a job of higher priority."""
    cluster.node("gpu", 1000, gpus=1)
    run(cluster, "hog", spec(1000, gpus=1, priority=9))
    cluster.advance(90)
    cluster.submit(spec(1000, gpus=1, priority=8), "blocked")
    cluster.settle()
    return cluster


def test_who_finds_nobody_that_may_leave_keeps_no_larger_one_from_its_own_victim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The smaller one looks at those that are emptiest, where all are protected; only one node suits the larger one."""
    monkeypatch.setattr(preempt, "LOOKED_AT_MAX", 3)
    cluster = elastic(Parameters(reservations_max=1))
    for number in range(8):
        cluster.node(f"a{number}", 4000, memory=1000)
        cluster.submit(spec(3000, memory=500, expected_seconds=100), f"protected-{number}")
    cluster.node("large", 4000, memory=4000)
    cluster.submit(spec(4000, memory=4000), "victim")
    cluster.settle()
    for name in [job.id for job in cluster.state.jobs.values() if job.stage == "placed"]:
        cluster.start(name)
    behind_a_blocked_one(cluster)
    cluster.submit(spec(2000, memory=600, priority=5), "smaller")
    assert asked_to_leave(cluster.settle()) == {}
    cluster.submit(spec(2000, memory=2000, priority=5), "larger")
    assert asked_to_leave(cluster.settle()) == {"victim": "larger"}


@pytest.mark.parametrize("cpu", [3000, 3500])
def test_who_keeps_to_a_start_that_was_told_keeps_nobody_else_from_room_that_comes_later(cpu: int) -> None:
    cluster = elastic(Parameters(reservations_max=1))
    cluster.node("first-free", 4000)
    cluster.node("then-free", 4000)
    run(cluster, "ends", spec(4000, time_limit_seconds=100, priority=9))
    run(cluster, "leaves", spec(4000, priority=9, grace=600))
    cluster.submit(spec(3000, memory=1000), "told")
    cluster.settle()
    assert cluster.job("told").reserved_start_ns > cluster.now
    for name, need in (("next", spec(cpu, memory=1000)), ("last", spec(4000, memory=900))):
        cluster.submit(need, name)
        cluster.settle()
    cluster.ask(e.SuspendRequested, "leaves")
    cluster.settle()
    assert [list(cluster.job(name).reserved_nodes) for name in ("told", "next", "last")] == [
        ["first-free"],
        ["then-free"],
        [],
    ]


# ---- the same is decided ----


def drawn(draw: random.Random) -> JobSpec:
    """Return a job: a plain one, one of a gang, or a borrower, of any need."""
    cpu, memory = 500 * draw.randint(1, 8), 100 * draw.randint(1, 6)
    gpus, share = draw.choice([(0, 0), (0, 0), (1, 0), (2, 0), (0, 300), (0, 600)])
    limit, gang = draw.choice([None, None, 400, 900]), draw.choice([1, 1, 1, 2, 3])
    if draw.random() < 0.7:
        need = {"memory": memory, "gpus": gpus, "gang": gang}
        return spec(cpu, time_limit_seconds=limit, tenant=draw.choice("tab"), **need)
    ranges = {
        "default": ResourceRange(minimum=Resources(cpu, memory)),
        "learning": ResourceRange(minimum=Resources(cpu // 2, memory, gpus, 0, share)),
    }
    component = Component(name="main", command=("true",), resources=ranges)
    return JobSpec(
        name="job",
        tenant=draw.choice("tab"),
        submitter="u",
        components=(component,),
        gang_size=gang,
        time_limit_seconds=limit,
        phase_entry="asked",
    )


def crowded(draw: random.Random) -> Cluster:
    """Return a cluster in which room is kept for two, and many wait behind them."""
    cluster = elastic(Parameters(reservations_max=2))
    for number in range(draw.randint(2, 5)):
        cluster.node(f"n{number}", 1000 * draw.randint(2, 6), gpus=draw.randint(0, 3), switch=f"s{number // 2}")
    run(cluster, "first", spec(500, time_limit_seconds=5000))
    for number in range(30):
        cluster.submit(drawn(draw), f"j{number:02d}")
    return cluster


@pytest.mark.parametrize("seed", range(6))
def test_whoever_is_ruled_out_would_have_had_nothing_decided(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one priority: who may push others out takes turns, which are counted by those who are tried."""
    draw = random.Random(seed)
    cluster, ruled_out = crowded(draw), 0
    by_rule = Nowhere.rules_out_larger

    def decided(*, all_tried: bool) -> Pass:
        def rules_out_larger(self: Nowhere, *asks: object) -> bool | None:
            nonlocal ruled_out
            found = None if all_tried else by_rule(self, *asks)  # type: ignore[arg-type]
            ruled_out += bool(found)
            return found

        monkeypatch.setattr(Nowhere, "rules_out_larger", rules_out_larger)
        return decide(cluster.state, cluster.now)

    for _ in range(30):
        for _ in range(50):
            by_it, without = decided(all_tried=False), decided(all_tried=True)
            assert by_it.events == without.events
            assert [(job, by_it.waiting.get(job)) for job in cluster.state.jobs] == [
                (job, without.waiting.get(job)) for job in cluster.state.jobs
            ]
            if not by_it.events:
                break
            cluster.append("scheduler", cluster.leader, *by_it.events)
        active = [job.id for job in cluster.state.jobs.values() if job.stage in ("placed", "running")]
        if active and draw.random() < 0.6:
            name = draw.choice(active)
            cluster.start(name)
            cluster.exit(name, "completed")
        else:
            cluster.now += draw.choice([1, 60, 500]) * 1_000_000_000
        cluster.submit(drawn(draw))
    assert ruled_out > 20, "or nothing was compared"


@pytest.mark.parametrize("seed", range(20))
def test_whoever_is_covered_by_one_of_its_shape_is_ruled_out_and_nobody_else(seed: int) -> None:
    drawn, nowhere, tried = random.Random(seed), Nowhere(), list[Right]()

    def right() -> Right:
        return Right(drawn.randrange(3), drawn.choice([60, 600]), drawn.choice(["", "a", "b"]), drawn.randrange(3))

    for _ in range(30):
        own = right()
        assert nowhere.rules_out(fit().shape, lambda own=own: own) == any(other.covers(own) for other in tried)  # type: ignore[misc]
        tried.append(right())
        nowhere.add(fit(), tried[-1], tried=True, hopeless=False)
