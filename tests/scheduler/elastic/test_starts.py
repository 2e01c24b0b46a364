"""The earliest start that is told is the right number, and none is told that cannot be."""

from __future__ import annotations

from typing import Any

import pytest
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_scheduler.explain import explain

from tests.scheduler.elastic.lab import all_events, elastic, leave, nodes_of, of, run
from tests.scheduler.elastic.test_backfill import a_backfiller
from tests.scheduler.elastic.test_strict import join
from tests.support.cluster import SECOND, Cluster, spec

UNKNOWN = (None, None)


def start(cluster: Cluster, job: str) -> tuple[float | None, str | None]:
    """Return in how many seconds the job starts as far as is told, and by what."""
    told = explain(cluster.state, cluster.waiting, job, cluster.now)
    seconds = None if told.starts_at_ns is None else (told.starts_at_ns - cluster.now) / SECOND
    return seconds, told.starts_basis


def waits(cluster: Cluster, name: str, cpu: int = 2000, **more: Any) -> str:
    cluster.submit(spec(cpu, **more), name)
    cluster.settle()
    assert cluster.stage(name) == "pending"
    return name


# ---- room that is kept, and who is in it meanwhile ----


def test_who_was_let_in_leaves_in_time_so_the_start_that_was_told_stands_and_so_does_the_next() -> None:
    cluster, start_ns = a_backfiller(expected_seconds=2_500)
    cluster.ask(e.JobLimitChanged, "meanwhile", time_limit_seconds=None)
    cluster.settle()
    waits(cluster, "next")
    cluster.advance(100)
    left = (start_ns - cluster.now) / SECOND
    assert start(cluster, "gang") == (left, "limit"), "and not when the other expects to end, 500 s later"
    assert start(cluster, "next") == UNKNOWN, "the gang declared nothing"


def test_behind_a_gang_that_declared_its_time_the_next_starts_when_that_is_over() -> None:
    cluster = elastic()
    for node in ("n1", "n2"):
        cluster.node(node, 2000)
    run(cluster, "runs", spec(2000, time_limit_seconds=2000))
    waits(cluster, "gang", gang=2, expected_seconds=300)
    run(cluster, "meanwhile", spec(1000, grace=30, time_limit_seconds=100))
    cluster.ask(e.JobLimitChanged, "meanwhile", time_limit_seconds=9_000)
    waits(cluster, "next")
    assert (start(cluster, "gang"), start(cluster, "next")) == ((2000.0, "limit"), (2300.0, "limit"))
    cluster.now = cluster.job("gang").reserved_start_ns - 30 * SECOND
    cluster.settle()
    assert start(cluster, "gang") == (30.0, "limit")
    cluster.advance(30)
    leave(cluster, "meanwhile")
    cluster.exit("runs", "stopped")
    assert cluster.stage("gang") == "placed", "as was told"


def test_who_was_let_in_and_is_not_in_the_way_stays() -> None:
    """Its node has come back with more: the gang fits beside it, and behind the gang nothing comes free of it."""
    cluster, _ = a_backfiller()
    cluster.ask(e.JobLimitChanged, "meanwhile", time_limit_seconds=None)
    cluster.node("n2", 3000, incarnation=2, held=[e.HeldSandbox(job="meanwhile", attempt=1, rank=0)])
    cluster.settle()
    assert start(cluster, "gang") == (2000.0, "limit")
    waits(cluster, "whole", 3000)
    assert start(cluster, "whole") == UNKNOWN


# ---- nodes that are cleared ----


def test_whoever_is_on_a_node_that_is_drained_has_left_the_others_too_by_the_deadline() -> None:
    cluster = elastic()
    for node in ("n1", "n2"):
        cluster.node(node, 2000)
    run(cluster, "gang", spec(2000, gang=2, grace=10, expected_seconds=1000))
    cluster.now += 850 * SECOND  # close to its end, so it may stay until the deadline
    waits(cluster, "next")
    assert start(cluster, "next") == (150.0, "expected")
    cluster.ask(e.NodeDrainRequested, node="n1", deadline_ns=cluster.now + 60 * SECOND)
    cluster.settle()
    assert cluster.stage("gang") == "running"
    assert start(cluster, "next") == (60.0, "deadline")
    cluster.advance(50)
    assert cluster.stage("gang") == "preempting"
    assert start(cluster, "next") == (10.0, "deadline")
    cluster.advance(10)
    leave(cluster, "gang")
    assert nodes_of(cluster, "next") == ["n2"]


def test_nothing_is_promised_on_a_node_that_is_drained_or_cordoned() -> None:
    cluster = elastic()
    cluster.node("n1", 2000)
    run(cluster, "runs", spec(2000, expected_seconds=60))
    waits(cluster, "next")
    assert start(cluster, "next") == (60.0, "expected")
    cluster.ask(e.NodeDrainRequested, node="n1", deadline_ns=cluster.now + 900 * SECOND)
    assert start(cluster, "next") == UNKNOWN
    cluster.ask(e.NodeResumeRequested, node="n1")
    cordoned = e.NodeCordoned(id="c", at_ns=cluster.now, node="n1", incarnation=1, reasons=(e.Reason(code="x"),))
    cluster.append("scheduler", "s1", cordoned)
    assert start(cluster, "next") == UNKNOWN


def planned(cluster: Cluster, begins: int, ends: int, *nodes: str) -> None:
    at_ns = [cluster.now + seconds * SECOND for seconds in (begins, ends)]
    cluster.ask(e.MaintenancePlanned, name="m", nodes=nodes or ("n1",), start_ns=at_ns[0], end_ns=at_ns[1])


@pytest.mark.parametrize(
    ("begins", "limit", "expected"),
    [
        (1800, None, (2400.0, "expected")),  # near: whoever may still run then is kept away until it is over
        (1800, 500, (100.0, "expected")),  # it has ended before
        (1800, 1750, (2400.0, "expected")),
        (7200, None, (100.0, "expected")),  # far: it starts, and leaves in time
    ],
)
def test_a_job_is_told_to_start_before_a_maintenance_only_if_it_may(
    begins: int, limit: int | None, expected: tuple[float, str]
) -> None:
    cluster = elastic()
    cluster.node("n1", 2000)
    run(cluster, "runs", spec(2000, expected_seconds=100))
    planned(cluster, begins, begins + 600)
    waits(cluster, "next", time_limit_seconds=limit)
    assert start(cluster, "next") == expected


def test_whoever_declared_nothing_has_left_when_the_maintenance_begins() -> None:
    cluster = elastic()
    cluster.node("n1", 2000)
    run(cluster, "runs", spec(2000))
    waits(cluster, "next", expected_seconds=100)
    assert start(cluster, "next") == UNKNOWN
    planned(cluster, 7200, 9000)
    waits(cluster, "last")
    assert start(cluster, "next") == (9000.0, "maintenance")
    assert start(cluster, "last") == (9100.0, "expected")


def test_of_two_nodes_the_one_without_maintenance_is_told() -> None:
    cluster = elastic()
    for node, seconds in (("n1", 100), ("n2", 300)):
        cluster.node(node, 2000)
        run(cluster, f"on-{node}", spec(2000, expected_seconds=seconds))
    waits(cluster, "next")
    assert start(cluster, "next") == (100.0, "expected")
    planned(cluster, 200, 5000)
    cluster.settle()
    assert start(cluster, "next") == (300.0, "expected")


# ---- what binds a gang or a strict job ----


def test_a_strict_job_is_promised_nothing_but_its_model() -> None:
    cluster = elastic()
    join(cluster, "n1", "EPYC")
    run(cluster, "strict", spec(2000, determinism="strict"))
    cluster.submit(spec(2000, priority=5, expected_seconds=60), "urgent")
    cluster.settle()
    cluster.exit("strict", "suspended", acknowledged=True)
    join(cluster, "x1", "Xeon")
    cluster.settle()
    cluster.start("urgent")
    assert start(cluster, "strict") == (60.0, "expected"), "the Xeon is free, and of no use"
    waits(cluster, "gang", gang=2, determinism="strict")
    assert start(cluster, "gang") == UNKNOWN, "there is one node of each model"


def test_a_strict_gang_starts_when_all_nodes_of_one_model_are_free() -> None:
    cluster = elastic()
    for name, model, seconds in (("n1", "EPYC", 60), ("x1", "Xeon", 100), ("n2", "EPYC", 200), ("x2", "Xeon", 150)):
        join(cluster, name, model)
        run(cluster, f"on-{name}", spec(2000, expected_seconds=seconds))
    waits(cluster, "gang", gang=2, determinism="strict")
    assert start(cluster, "gang") == (150.0, "expected"), "not when the first two nodes are, at 100 s"
    waits(cluster, "loose", gang=2)
    assert start(cluster, "loose") == (200.0, "expected")


def test_an_intensive_gang_starts_when_a_switch_has_room_for_all() -> None:
    cluster = elastic()
    for node, switch, seconds in (("n1", "s1", 60), ("n2", "s2", 100), ("n3", "s1", 200), ("n4", "s2", 150)):
        cluster.node(node, 2000, switch=switch)
        run(cluster, f"on-{node}", spec(2000, expected_seconds=seconds))
    waits(cluster, "gang", gang=2, communication="intensive")
    assert start(cluster, "gang") == (150.0, "expected")


def test_an_intensive_gang_that_waits_for_one_node_is_told_to_start_when_it_takes_more() -> None:
    cluster = elastic()
    for node in ("n1", "n2"):
        cluster.node(node, 2000, switch="s1")
        run(cluster, f"on-{node}", spec(1200, expected_seconds=900))
    waits(cluster, "gang", 800, gang=2, communication="intensive", locality_wait_seconds=300)
    assert start(cluster, "gang") == (300.0, "locality"), "not now, though there is room below the switch"
    cluster.advance(299)
    assert start(cluster, "gang") == (1.0, "locality")
    cluster.advance(1)
    assert sorted(nodes_of(cluster, "gang")) == ["n1", "n2"]


def test_an_intensive_gang_is_told_of_the_one_node_that_is_free_before() -> None:
    cluster = elastic()
    for node, seconds in (("n1", 100), ("n2", 900)):
        cluster.node(node, 2000, switch="s1")
        run(cluster, f"on-{node}", spec(1200, expected_seconds=seconds))
    waits(cluster, "gang", 800, gang=2, communication="intensive", locality_wait_seconds=300)
    assert start(cluster, "gang") == (100.0, "expected")


# ---- tenants and devices ----


def test_of_a_tenant_no_more_are_told_to_start_than_lie_within_its_ceiling() -> None:
    cluster = elastic()
    for node in ("n1", "n2"):
        cluster.node(node, 2000)
        run(cluster, f"on-{node}", spec(2000, tenant="other", expected_seconds=60))
    cluster.ask(e.QueueChanged, tenant="t", ceiling=Resources(3000, 8192))
    for name in ("first", "second"):
        waits(cluster, name)
    assert (start(cluster, "first"), start(cluster, "second")) == ((60.0, "expected"), UNKNOWN)


def shared_device(*seconds: int | None) -> Cluster:
    """One device, of which jobs have halves for so long."""
    cluster = elastic()
    cluster.node("n1", 4000, gpus=1)
    for number, each in enumerate(seconds):
        run(cluster, f"half{number}", spec(100, gpu_millis=500, expected_seconds=each))
    return cluster


@pytest.mark.parametrize(("other", "expected"), [(None, UNKNOWN), (90, (90.0, "expected"))])
def test_a_device_is_free_as_a_whole_when_the_last_who_shares_it_has_left(
    other: int | None, expected: tuple[float | None, str | None]
) -> None:
    cluster = shared_device(60, other)
    waits(cluster, "whole", 100, gpus=1)
    assert start(cluster, "whole") == expected


def test_parts_of_a_device_are_told_to_one_after_the_other() -> None:
    cluster = shared_device(60, 90)
    for name, seconds in (("a", 500), ("b", 500), ("c", 500)):
        waits(cluster, name, 100, gpu_millis=500, expected_seconds=seconds)
    told = [start(cluster, name) for name in ("a", "b", "c")]
    assert told == [(60.0, "expected"), (90.0, "expected"), (560.0, "expected")]
    assert not of(all_events(cluster), e.PreemptRequested)
