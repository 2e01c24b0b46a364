"""Forecasts of starts on nodes whose devices differ, and for parts of devices: told is when the right one is free."""

from __future__ import annotations

import heapq
from random import Random
from typing import Any

import pytest
from tidegate_events.resources import GpuDevice
from tidegate_scheduler.dry_run import dry_run
from tidegate_scheduler.explain import explain, queue
from tidegate_scheduler.policy.elastic.devices_then import DevicesThen
from tidegate_scheduler.policy.elastic.forecast import ROWS_MAX
from tidegate_scheduler.policy.elastic.occupants import DEVICES_PER_ROW
from tidegate_scheduler.policy.elastic.shapes import Fit
from tidegate_scheduler.policy.elastic.table import Ints
from tidegate_scheduler.policy.parameters import Parameters

from tests.scheduler.elastic.lab import elastic, run
from tests.support.cluster import SECOND, Cluster, spec

SMALL, LARGE = GpuDevice(0, "uuid-0", "small", 40_000), GpuDevice(1, "uuid-1", "large", 80_000)
NEEDS_LARGE: list[dict[str, Any]] = [{"gpu_memory": 60_000}, {"gpu_models": ("large",)}]


def told(cluster: Cluster) -> dict[str, int | None]:
    """Return in how many seconds each job in line is told to start."""
    cluster.settle()
    line = queue(cluster.state, cluster.waiting, cluster.now).queue
    return {
        each.job: None if each.starts_at_ns is None else (each.starts_at_ns - cluster.now) // SECOND for each in line
    }


def mixed(**until: int) -> Cluster:
    """Return a node with a small and a large device, and who holds each of them for so many seconds."""
    cluster = elastic()
    cluster.node("n", 8000, devices=(SMALL, LARGE))
    if "large" in until:
        run(cluster, "has-large", spec(500, gpus=1, gpu_memory=60_000, expected_seconds=until["large"]))
    if "small" in until:
        run(cluster, "has-small", spec(500, gpus=1, expected_seconds=until["small"]))
    return cluster


@pytest.mark.parametrize("wants", NEEDS_LARGE)
def test_who_needs_the_large_device_starts_when_that_is_free_though_the_small_one_is_before(
    wants: dict[str, Any],
) -> None:
    cluster = mixed(large=2000, small=500)
    cluster.submit(spec(500, gpus=1, **wants), "waits")
    assert told(cluster) == {"waits": 2000}
    alone = explain(cluster.state, cluster.waiting, "waits", cluster.now)
    assert (alone.starts_at_ns, alone.starts_basis) == (cluster.now + 2000 * SECOND, "expected")


def test_a_dry_run_says_the_same() -> None:
    cluster = mixed(large=2000, small=500)
    found = dry_run(cluster.state, spec(500, gpus=1, gpu_memory=60_000), cluster.now)
    assert (found.starts_at_ns, found.starts_basis) == (cluster.now + 2000 * SECOND, "expected")


def test_a_small_device_that_is_free_is_nothing_to_who_needs_the_large_one() -> None:
    cluster = mixed(large=2000)
    run(cluster, "has-cpu", spec(7000, expected_seconds=100))
    cluster.submit(spec(1000, gpus=1, gpu_memory=60_000), "waits")
    assert told(cluster) == {"waits": 2000}


def test_where_nobody_knows_when_the_large_one_is_free_no_start_is_told() -> None:
    cluster = elastic()
    cluster.node("n", 8000, devices=(SMALL, LARGE))
    run(cluster, "has-large", spec(500, gpus=1, gpu_memory=60_000))
    run(cluster, "has-small", spec(500, gpus=1, expected_seconds=100))
    cluster.submit(spec(500, gpus=1, gpu_memory=60_000), "waits")
    assert told(cluster) == {"waits": None}


def test_of_two_who_need_the_large_one_the_second_waits_for_the_first() -> None:
    cluster = mixed(large=100, small=100)
    for name in ("first", "second"):
        cluster.submit(spec(500, gpus=1, gpu_memory=60_000, expected_seconds=30), name)
    assert told(cluster) == {"first": 100, "second": 130}
    cluster.submit(spec(500, gpus=1, expected_seconds=300), "any")
    assert told(cluster) == {"first": 100, "second": 130, "any": 100}


def test_who_may_have_either_leaves_the_large_one_to_who_needs_it() -> None:
    cluster = mixed(large=100, small=100)
    cluster.submit(spec(500, gpus=1, expected_seconds=30), "any")
    cluster.submit(spec(500, gpus=1, gpu_memory=60_000, expected_seconds=30), "needs-large")
    assert told(cluster) == {"any": 100, "needs-large": 100}


def test_a_gang_starts_when_as_many_devices_suit_it() -> None:
    cluster = elastic()
    for name, until in (("a", 300), ("b", 700)):
        cluster.node(name, 8000, devices=(SMALL, LARGE))
        run(cluster, f"large-{name}", spec(500, gpus=1, gpu_memory=60_000, expected_seconds=until))
    cluster.submit(spec(500, gpus=1, gpu_memory=60_000, gang=2), "gang")
    assert told(cluster) == {"gang": 700}


def test_a_part_of_a_device_is_looked_for_on_those_that_suit() -> None:
    cluster = elastic()
    cluster.node("n", 8000, devices=(SMALL, LARGE))
    run(cluster, "on-large", spec(500, gpu_millis=800, gpu_memory=60_000, expected_seconds=900))
    run(cluster, "on-small", spec(500, gpu_millis=500))
    run(cluster, "has-cpu", spec(1000, expected_seconds=100))
    cluster.submit(spec(500, gpu_millis=400, gpu_memory=60_000), "waits")
    assert told(cluster) == {"waits": 900}


def test_each_of_a_gang_finds_its_part_on_another_device() -> None:
    cluster = elastic()
    cluster.node("n", 4000, gpus=2)
    for number in range(2):
        run(cluster, f"part{number}", spec(500, gpu_millis=600))
    run(cluster, "has-cpu", spec(3000, expected_seconds=100))
    cluster.submit(spec(1000, gpu_millis=400, gang=2), "gang")
    assert told(cluster) == {"gang": 100}


def test_parts_of_those_in_front_leave_what_they_do_not_have_of_each_device() -> None:
    """Two devices, and each has 400 left beside the 600 of one of the first two: 400 more fit on each of them."""
    cluster = elastic(Parameters(reservations_max=0))
    cluster.node("n", 8000, gpus=2)
    run(cluster, "before", spec(500, gpus=2, expected_seconds=100))
    for number, millis in enumerate((600, 600, 400, 400, 400)):
        cluster.submit(spec(500, gpu_millis=millis, expected_seconds=50 + number), f"j{number}")
    assert told(cluster) == {"j0": 100, "j1": 100, "j2": 100, "j3": 100, "j4": 150}


def test_a_device_of_which_parts_are_given_away_is_not_free_as_a_whole_before_the_last_has_left() -> None:
    cluster = elastic(Parameters(reservations_max=0))
    cluster.node("n", 8000, gpus=1)
    run(cluster, "before", spec(500, gpus=1, expected_seconds=100))
    cluster.submit(spec(500, gpu_millis=500, expected_seconds=30), "part")
    cluster.submit(spec(500, gpu_millis=500, expected_seconds=80), "longer")
    cluster.submit(spec(500, gpus=1, expected_seconds=500), "whole")
    assert told(cluster) == {"part": 100, "longer": 100, "whole": 180}


def test_room_that_is_kept_from_a_start_nobody_knows_keeps_the_large_device_alone() -> None:
    cluster = elastic()
    cluster.node("n", 8000, devices=(SMALL, LARGE))
    run(cluster, "has-large", spec(500, gpus=1, gpu_memory=60_000))
    run(cluster, "has-small", spec(500, gpus=1, expected_seconds=100))
    cluster.submit(spec(500, gpus=1, gpu_memory=60_000, priority=0), "kept")
    cluster.submit(spec(500, gpus=1), "any")
    found = told(cluster)
    assert cluster.job("kept").reserved_nodes == ("n",)
    assert found == {"kept": None, "any": 100}


@pytest.mark.parametrize(("nodes", "told_least"), [(10, 50), (40, 50), (400, 10)])
def test_many_starts_are_told_where_devices_differ_and_the_work_is_bounded(
    nodes: int, told_least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is looked at before the bound is told a start; those behind are told none."""
    looked, put = list[int](), DevicesThen.put

    def counted(devices: DevicesThen, fit: Fit, room: Ints, at_ns: int, until_ns: int) -> None:
        looked.append(len(devices))
        put(devices, fit, room, at_ns, until_ns)

    cluster = elastic(Parameters(reservations_max=0))
    for number in range(nodes):
        cluster.node(f"n{number:03}", 8000, devices=(SMALL, LARGE))
        for memory in (60_000, 0):
            cluster.submit(spec(500, gpus=1, gpu_memory=memory, expected_seconds=1000 + number))
    cluster.settle()
    for job in sorted(cluster.state.jobs):
        cluster.start(job)
    for number in range(50):
        cluster.submit(spec(500, gpus=1, gpu_memory=60_000, gang=1 + number % 4, expected_seconds=100), f"w{number}")
    cluster.settle()
    monkeypatch.setattr(DevicesThen, "put", counted)
    line = queue(cluster.state, cluster.waiting, cluster.now).queue
    starts = [each.starts_at_ns is not None for each in line[:50]]
    assert told_least <= sum(starts), "so many are told"
    assert starts == sorted(starts, reverse=True), "those in front"
    assert sum(looked) < DEVICES_PER_ROW * ROWS_MAX + max(looked)
    assert line[0].starts_at_ns == cluster.now + 1000 * SECOND


def _job(draw: Random, seconds: int) -> Any:
    part: dict[str, Any] = draw.choice(
        [{"gpus": 1}, {"gpus": 1}, {"gpus": 2}, {"gpu_millis": draw.choice([300, 500, 700])}]
    )
    which: dict[str, Any] = draw.choice(
        [{}, {"gpu_memory": 60_000}, {"gpu_models": ("large",)}, {"gpu_models": ("small",)}]
    )
    return spec(draw.choice([100, 1000]), time_limit_seconds=seconds, **part, **which)


@pytest.mark.parametrize("seed", range(40))
def test_the_first_in_line_starts_when_it_was_told_if_all_end_by_their_limit(seed: int) -> None:
    """Whatever devices the nodes have, and whatever parts of them others do: it is no later and no earlier."""
    draw, cluster, ends = Random(seed), elastic(), list[tuple[int, str]]()
    for number in range(2):
        kinds = [draw.choice([("small", 40_000), ("large", 80_000)]) for _ in range(3)]
        cluster.node(f"n{number}", 4000, devices=tuple(GpuDevice(i, f"u{i}", *kind) for i, kind in enumerate(kinds)))

    def begin() -> None:
        for job in sorted(cluster.state.jobs.values(), key=lambda job: job.id):
            if job.stage == "placed":
                cluster.start(job.id)
                limit = cluster.state.specs[job.id].time_limit_seconds
                assert limit is not None
                heapq.heappush(ends, (cluster.now + limit * SECOND, job.id))

    for number in range(14):
        cluster.submit(_job(draw, 100 + draw.randrange(900)), f"j{number:02}")
        cluster.settle()
        begin()
        cluster.advance(draw.randrange(5))
    cluster.advance(60)  # who fits on no node is told by then
    waiting = [each.job for each in queue(cluster.state, cluster.waiting, cluster.now).queue]
    assert waiting, "or nothing is told"
    first, at_seconds = waiting[0], told(cluster)[waiting[0]]
    assert at_seconds is not None
    due_ns = cluster.now + at_seconds * SECOND
    while cluster.stage(first) == "pending":
        cluster.now, name = heapq.heappop(ends)
        cluster.exit(name, "completed")
        begin()
    assert cluster.job(first).placed_ns == due_ns
