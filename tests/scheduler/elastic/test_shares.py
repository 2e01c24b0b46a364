"""Whose turn it is: fair shares and weights, quotas, stopped queues, ageing, and the shorter rest first."""

from __future__ import annotations

from collections import Counter

import pytest
from tidegate_events import events as e
from tidegate_events.resources import Resources

from tests.scheduler.elastic.lab import HOUR, complete, elastic, leave, run
from tests.support.cluster import Cluster, spec


def fill(cluster: Cluster, **jobs: int) -> Counter[str]:
    """Let tenants submit so many jobs of a thousand each, one after the other; return how many each has placed."""
    for tenant, count in jobs.items():
        for number in range(count):
            cluster.submit(spec(1000, tenant=tenant), f"{tenant}{number}")
    cluster.settle()
    return placed(cluster)


def placed(cluster: Cluster) -> Counter[str]:
    return Counter(job.tenant for job in cluster.state.jobs.values() if not job.waiting)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [({}, {"a": 2, "b": 2}), ({"a": 3}, {"a": 3, "b": 1}), ({"a": 1, "b": 3}, {"a": 1, "b": 3})],
)
def test_room_is_shared_by_weight_whoever_came_first(weights: dict[str, int], expected: dict[str, int]) -> None:
    cluster = elastic()
    cluster.node("n1", 4000)
    for tenant, weight in weights.items():
        cluster.ask(e.QueueChanged, tenant=tenant, weight=weight)
    assert fill(cluster, a=6, b=6) == expected


def test_what_is_free_goes_to_whoever_has_less() -> None:
    cluster = elastic()
    cluster.node("n1", 4000)
    assert fill(cluster, a=6) == {"a": 4}
    fill(cluster, b=6)
    for number in range(2):
        complete(cluster, f"a{number}")
    assert placed(cluster) == {"a": 2, "b": 2}


def test_shares_are_of_the_resource_that_a_tenant_has_most_of() -> None:
    """The one with half of the GPUs has more than the other with a third of the CPU."""
    cluster = elastic()
    cluster.node("n1", 9000, gpus=4)
    run(cluster, "gpu", spec(100, gpus=2, tenant="learner"))
    run(cluster, "cpu", spec(3000, tenant="sampler"))
    cluster.submit(spec(5000, tenant="learner"), "first")
    cluster.submit(spec(5000, tenant="sampler"), "second")
    cluster.settle()
    assert [cluster.stage(job) for job in ("first", "second")] == ["pending", "placed"]


def test_beyond_its_ceiling_a_tenant_waits_and_the_others_go_on() -> None:
    cluster = elastic()
    cluster.node("n1", 4000)
    cluster.ask(e.QueueChanged, tenant="a", ceiling=Resources(2000))
    assert fill(cluster, a=4, b=1) == {"a": 2, "b": 1}
    reason = cluster.waiting["a2"]
    assert reason.code == "QuotaReached"
    assert (reason.numbers["cpu_millis_used"], reason.numbers["cpu_millis_ceiling"]) == (2000, 2000)
    complete(cluster, "a0")
    assert placed(cluster) == {"a": 2, "b": 1}
    cluster.ask(e.QueueChanged, tenant="a", ceiling=Resources(3000))
    cluster.settle()
    assert placed(cluster) == {"a": 3, "b": 1}


def test_whoever_has_less_than_guaranteed_comes_first() -> None:
    cluster = elastic()
    cluster.node("n1", 4000)
    cluster.ask(e.QueueChanged, tenant="b", guaranteed=Resources(3000), weight=1)
    cluster.ask(e.QueueChanged, tenant="a", weight=100)
    assert fill(cluster, a=6, b=6) == {"a": 1, "b": 3}


def test_idle_quota_is_borrowed() -> None:
    cluster = elastic()
    cluster.node("n1", 4000)
    cluster.ask(e.QueueChanged, tenant="b", guaranteed=Resources(3000))
    assert fill(cluster, a=4) == {"a": 4}


def test_a_stopped_queue_starts_nothing_and_lets_run_what_runs() -> None:
    cluster = elastic()
    cluster.node("n1", 4000)
    run(cluster, "running", spec(1000, tenant="a"))
    cluster.ask(e.QueueChanged, tenant="a", stopped=True)
    assert fill(cluster, a=1, b=1) == {"a": 1, "b": 1}
    assert (cluster.waiting["a0"].code, cluster.stage("running")) == ("QueueStopped", "running")
    cluster.ask(e.QueueChanged, tenant="a")
    cluster.settle()
    assert cluster.stage("a0") == "placed"


def test_ageing_beats_a_stream_of_higher_priority() -> None:
    """The stream never ends and never leaves the node empty; still the big job gets it, and is not pushed out again."""
    cluster = elastic()
    cluster.node("n1", 4000)
    cluster.submit(spec(2000, priority=2), "s0")
    cluster.settle()
    cluster.submit(spec(4000, priority=1), "big")
    done = 0
    for number in range(1, 60):
        cluster.submit(spec(2000, priority=2), f"s{number}")
        cluster.settle()
        if cluster.stage("big") != "pending":
            break
        for job in [job for job in cluster.state.jobs.values() if not job.waiting]:
            cluster.start(job.id)
        cluster.advance(HOUR // 4)
        oldest = min((job for job in cluster.state.jobs.values() if not job.waiting), key=lambda job: job.placed_ns)
        cluster.exit(oldest.id, "completed")
        done += 1
    assert cluster.stage("big") == "placed", f"{done} went before it"
    assert done >= 4, "an hour of waiting weighs as much as one class of priority"


def test_within_a_band_the_shorter_rest_goes_first() -> None:
    cluster = elastic()
    cluster.node("n1", 1000)
    cluster.submit(spec(1000, expected_seconds=6000), "long")
    cluster.submit(spec(1000, expected_seconds=60), "short")
    cluster.submit(spec(1000, expected_seconds=6000, priority=1), "upper")
    cluster.settle()
    assert cluster.stage("upper") == "placed"
    complete(cluster, "upper")
    assert [cluster.stage(job) for job in ("long", "short")] == ["pending", "placed"]


def test_without_estimates_whoever_had_less_goes_first() -> None:
    cluster = elastic()
    cluster.node("n1", 1000)
    run(cluster, "served", spec(1000))
    cluster.advance(600)
    cluster.submit(spec(1000, priority=5), "high")
    cluster.settle()
    leave(cluster, "served")
    cluster.start("high")
    cluster.submit(spec(1000), "new")
    cluster.settle()
    cluster.exit("high", "completed")
    assert [cluster.stage(job) for job in ("served", "new")] == ["suspended", "placed"]


def test_progress_shortens_the_rest_by_half_at_most() -> None:
    """It makes a job come earlier, but one cannot talk oneself to the very front."""
    cluster = elastic()
    cluster.node("n1", 1000)
    run(cluster, "told", spec(1000, expected_seconds=6000))
    cluster.node_fact("told", cluster.members("told")[0], e.ProgressReported, progress_millis=1000, _node=False)
    cluster.submit(spec(1000, priority=5), "high")
    cluster.settle()
    cluster.save("told", 7)
    leave(cluster, "told")
    cluster.start("high")
    cluster.submit(spec(1000, expected_seconds=6000), "untold")
    cluster.submit(spec(1000, expected_seconds=600), "short")
    cluster.settle()
    cluster.exit("high", "completed")
    assert [cluster.stage(job) for job in ("told", "untold", "short")] == ["suspended", "pending", "placed"]
    complete(cluster, "short")
    assert [cluster.stage(job) for job in ("told", "untold")] == ["placed", "pending"]
