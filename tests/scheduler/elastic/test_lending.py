"""How CPU is lent: in steps to who is slow, at once to who needs it, and not so often that quotas flap."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate_events import events as e
from tidegate_scheduler.decide import decide
from tidegate_scheduler.policy.parameters import Parameters
from tidegate_scheduler.raising import LOWERED_WINDOWS

from tests.scheduler.elastic.lab import elastic, kinds, millis, of, phased, run
from tests.scheduler.elastic.world import answers, told_anew
from tests.support.cluster import SECOND, Cluster, spec

WINDOW = 3
"""Seconds over which a rate is measured."""


def rate(cluster: Cluster, job: str, kind: type[e.StepRateLow | e.StepRateRecovered]) -> list[e.AnyEvent]:
    about: dict[str, Any] = {"id": f"rate{len(cluster.frames)}", "at_ns": cluster.now, "tenant": "t", "job": job}
    about |= {"rate_millis": 1, "target_millis": 2, "window_seconds": WINDOW}
    cluster.append("metrics", "m1", kind(**about, attempt=cluster.job(job).attempt))
    return cluster.settle()


def beside_each_other(*, lend_interval_seconds: int = 1) -> Cluster:
    """Two jobs that would like to have 3000 each beside their 500, of 4000; the first one has it."""
    cluster = elastic(Parameters(lend_interval_seconds=lend_interval_seconds))
    cluster.node("n1", 4000)
    for name in ("a", "b"):
        run(cluster, name, phased(spec(), default=(500, 3000)))
    cluster.advance(100)
    assert both(cluster) == (3000, 1000)
    return cluster


def both(cluster: Cluster) -> tuple[int, int]:
    return millis(cluster, "a"), millis(cluster, "b")


def test_the_share_of_a_slow_job_is_raised_step_by_step_while_it_is_slow() -> None:
    cluster = beside_each_other()
    decided = of(rate(cluster, "b", e.StepRateLow), e.QuotaChanged)
    assert [(each.job, bool(each.reasons)) for each in decided] == [("a", False), ("b", True)]
    assert decided[1].reasons[0].code == "ShareRaised"
    assert decided[1].reasons[0].numbers == {"steps": 1, "steps_max": 4, "cpu_millis": 1125, "before": 1000}
    found = [both(cluster)]
    for _ in range(5):
        assert not cluster.advance(WINDOW - 1), "nobody knows yet whether that was enough"
        cluster.advance(1)
        found.append(both(cluster))
    assert found == [(2875, 1125), (2250, 1750), (1625, 2375), (1000, 3000), (1000, 3000), (1000, 3000)]
    assert cluster.wake_at is None, "it has all that it may have"


def test_a_step_is_taken_when_it_is_due_though_nothing_else_happens() -> None:
    cluster = beside_each_other()
    rate(cluster, "b", e.StepRateLow)
    assert cluster.wake_at == cluster.now + WINDOW * SECOND


def test_asking_about_a_later_time_loses_no_step() -> None:
    cluster = beside_each_other()
    rate(cluster, "b", e.StepRateLow)
    decide(cluster.state, cluster.now + 3600 * SECOND)
    assert answers(cluster.state, cluster.now) == answers(told_anew(cluster.frames), cluster.now)
    cluster.advance(WINDOW)
    assert both(cluster) == (2250, 1750)


def test_what_made_it_fast_enough_stays_for_a_while_and_is_given_back_step_by_step() -> None:
    cluster = beside_each_other()
    rate(cluster, "b", e.StepRateLow)
    cluster.advance(WINDOW)
    assert not rate(cluster, "b", e.StepRateRecovered), "it would be slow again"
    assert both(cluster) == (2250, 1750)
    back = WINDOW * LOWERED_WINDOWS
    assert not cluster.advance(back - 1)
    cluster.advance(1)
    assert both(cluster) == (2875, 1125)
    cluster.advance(back)
    assert both(cluster) == (3000, 1000)
    assert cluster.wake_at is None


def test_a_step_back_that_was_one_too_many_is_taken_again() -> None:
    cluster = beside_each_other()
    rate(cluster, "b", e.StepRateLow)
    cluster.advance(WINDOW)
    rate(cluster, "b", e.StepRateRecovered)
    cluster.advance(WINDOW * LOWERED_WINDOWS)
    assert both(cluster) == (2875, 1125)
    cluster.advance(WINDOW)
    rate(cluster, "b", e.StepRateLow)
    assert both(cluster) == (2250, 1750), "one step, and not from the start"


def test_a_rate_that_flaps_moves_no_more_than_one_step_in_a_window() -> None:
    cluster = beside_each_other()
    had, moved = both(cluster), 0
    for number in range(60):
        rate(cluster, "b", e.StepRateLow if number % 2 == 0 else e.StepRateRecovered)
        cluster.advance(WINDOW)
        moved += both(cluster) != had
        had = both(cluster)
        assert had[0] >= 500, "nobody has less than its floor"
    assert had == (1000, 3000)
    assert moved <= 4, "up and no more down, while it says again and again that it is slow"


def test_a_share_is_raised_no_more_often_than_anything_is_lent() -> None:
    cluster = beside_each_other(lend_interval_seconds=30)
    rate(cluster, "b", e.StepRateLow)
    assert both(cluster) == (2875, 1125)
    cluster.advance(29)
    assert millis(cluster, "b") == 1125
    cluster.advance(1)
    assert both(cluster) == (1000, 3000)


def test_only_what_others_do_not_need_is_raised_by() -> None:
    cluster = elastic()
    cluster.node("n1", 4000)
    run(cluster, "owner", phased(spec(priority=9), default=(3000, 3000), idle=(100, 100)))
    run(cluster, "slow", phased(spec(), default=(500, 4000)))
    rate(cluster, "slow", e.StepRateLow)
    cluster.advance(10 * WINDOW)
    assert (millis(cluster, "owner"), millis(cluster, "slow")) == (3000, 1000)
    cluster.phase("owner", "idle")
    cluster.advance(10)
    assert (millis(cluster, "owner"), millis(cluster, "slow")) == (100, 3900)
    cluster.phase("owner", "default")
    assert (millis(cluster, "owner"), millis(cluster, "slow")) == (3000, 1000), "at once"


def test_two_slow_jobs_are_raised_in_their_order_and_the_next_attempt_begins_without() -> None:
    cluster = elastic()
    cluster.node("n1", 4000)
    for name in ("a", "b", "c"):
        run(cluster, name, phased(spec(), default=(500, 3000)))
    for name in ("b", "c"):
        rate(cluster, name, e.StepRateLow)
    cluster.advance(10 * WINDOW)
    assert [millis(cluster, name) for name in ("a", "b", "c")] == [500, 3000, 500]
    cluster.ask(e.RequeueRequested, "b")
    cluster.settle()
    cluster.exit("b", "suspended", acknowledged=True)
    cluster.start("b")
    cluster.advance(60)
    assert [millis(cluster, name) for name in ("a", "b", "c")] == [500, 500, 3000]
    assert (cluster.job("b").slow, cluster.job("b").raised_steps) == (False, 0)


@settings(max_examples=60, deadline=None)
@given(
    ranges=st.lists(st.tuples(st.integers(1, 10), st.integers(0, 40)), min_size=2, max_size=4),
    acts=st.lists(st.tuples(st.sampled_from(["low", "recovered", "pass"]), st.integers(0, 3), st.integers(1, 90))),
)
def test_however_rates_change_nobody_is_below_its_floor_and_nothing_is_given_twice(
    ranges: list[tuple[int, int]], acts: list[tuple[str, int, int]]
) -> None:
    cluster = elastic()
    cluster.node("n1", 4000)
    floors: dict[str, int] = {}
    for number, (least, more) in enumerate(ranges):
        floors[f"j{number}"] = least * 100
        run(cluster, f"j{number}", phased(spec(), default=(least * 100, (least + more) * 100)))
    for what, which, seconds in acts:
        name = f"j{which % len(ranges)}"
        if what == "pass":
            cluster.advance(seconds)
        else:
            rate(cluster, name, e.StepRateLow if what == "low" else e.StepRateRecovered)
        assert all(millis(cluster, name) >= floor for name, floor in floors.items())
        assert sum(millis(cluster, name) for name in floors) <= 4000
        assert answers(cluster.state, cluster.now) == answers(told_anew(cluster.frames), cluster.now)
    cluster.advance(3600)
    assert sum(millis(cluster, name) for name in floors) == min(4000, sum(100 * (a + b) for a, b in ranges))


def test_a_slow_job_gets_no_more_than_it_may_have_and_nobody_less_than_its_minimum() -> None:
    cluster = elastic()
    cluster.node("n1", 4000)
    run(cluster, "high", phased(spec(priority=9), default=(2500, 4000)))
    run(cluster, "slow", phased(spec(), default=(500, 1000)))
    rate(cluster, "slow", e.StepRateLow)
    cluster.advance(10)
    assert (millis(cluster, "high"), millis(cluster, "slow")) == (3000, 1000)


def test_quotas_do_not_flap() -> None:
    """What is lent comes back at once when its owner needs it; it is handed out again after the interval only."""
    cluster = elastic(Parameters(lend_interval_seconds=30))
    cluster.node("n1", 4000)
    run(cluster, "owner", phased(spec(priority=9), default=(3000, 3000), idle=(100, 100)))
    run(cluster, "borrower", phased(spec(), default=(500, 4000)))
    cluster.advance(60)
    cluster.phase("owner", "idle")
    assert millis(cluster, "borrower") == 3900
    lent_at = cluster.now
    changes = 0
    for _ in range(20):
        cluster.advance(0.5)
        assert len(of(cluster.phase("owner", "default"), e.QuotaChanged)) >= 1
        assert (millis(cluster, "owner"), millis(cluster, "borrower")) == (3000, 1000), "needed, so it is back at once"
        cluster.advance(0.5)
        changes += sum(event.job == "borrower" for event in of(cluster.phase("owner", "idle"), e.QuotaChanged))
        assert millis(cluster, "borrower") == 1000
    assert changes == 0
    assert cluster.wake_at is not None
    assert cluster.wake_at <= cluster.now + 30 * SECOND
    assert cluster.now < lent_at + 30 * SECOND
    cluster.advance(30)
    assert millis(cluster, "borrower") == 3900


def test_who_comes_takes_what_was_lent() -> None:
    cluster = elastic(Parameters(lend_interval_seconds=300))
    cluster.node("n1", 4000)
    run(cluster, "borrower", phased(spec(), default=(500, 4000)))
    assert millis(cluster, "borrower") == 4000
    cluster.submit(spec(3500), "new")
    assert kinds(cluster.settle()) == ["QuotaChanged", "JobPlaced"], "first it shrinks, then there is room"
    assert (millis(cluster, "borrower"), millis(cluster, "new")) == (500, 3500)


def test_a_job_that_is_leaving_is_lent_nothing_more() -> None:
    cluster = elastic()
    cluster.node("n1", 4000)
    run(cluster, "leaving", phased(spec(priority=1), default=(2000, 4000)))
    run(cluster, "stays", phased(spec(priority=5), default=(1000, 1000)))
    cluster.submit(spec(2500, priority=9), "high")
    cluster.settle()
    assert cluster.stage("leaving") == "preempting"
    had = millis(cluster, "leaving")
    cluster.exit("stays", "completed")
    cluster.advance(10)
    assert millis(cluster, "leaving") <= had
