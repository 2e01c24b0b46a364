"""How CPU is lent: to the slow first, at once to who needs it, and not so often that quotas flap."""

from __future__ import annotations

from typing import Any

from tidegate_events import events as e
from tidegate_scheduler.policy.parameters import Parameters

from tests.scheduler.elastic.lab import elastic, kinds, millis, of, phased, run
from tests.support.cluster import SECOND, Cluster, spec


def rate(cluster: Cluster, job: str, kind: type[e.StepRateLow | e.StepRateRecovered]) -> list[e.AnyEvent]:
    about: dict[str, Any] = {"id": f"rate{len(cluster.frames)}", "at_ns": cluster.now, "tenant": "t", "job": job}
    attempt = cluster.job(job).attempt
    cluster.append("metrics", "m1", kind(**about, attempt=attempt, rate_millis=1, target_millis=2, window_seconds=3))
    return cluster.settle()


def test_a_slow_job_is_lent_to_first() -> None:
    cluster = elastic()
    cluster.node("n1", 4000)
    for name in ("a", "b"):
        run(cluster, name, phased(spec(), default=(500, 3000)))
    cluster.advance(10)
    assert (millis(cluster, "a"), millis(cluster, "b")) == (3000, 1000)
    rate(cluster, "b", e.StepRateLow)
    assert (millis(cluster, "a"), millis(cluster, "b")) == (1000, 3000)
    cluster.advance(10)
    rate(cluster, "b", e.StepRateRecovered)
    assert (millis(cluster, "a"), millis(cluster, "b")) == (3000, 1000)


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
