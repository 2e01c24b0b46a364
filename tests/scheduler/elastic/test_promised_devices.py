"""Room that is promised behind those who hold it: it is nothing to who needs none of it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tidegate_events import events as e
from tidegate_events.resources import GpuDevice, Resources
from tidegate_scheduler.policy.elastic.shapes import NOWHERE, Fit, Shape
from tidegate_scheduler.policy.elastic.table import GPUS, SHARE, Kept, Kind, NodeTable
from tidegate_scheduler.policy.parameters import Parameters

from tests.scheduler.elastic.lab import asked_to_leave, elastic, leave, run
from tests.support.cluster import spec

NEEDS = [
    Resources(500, 100),
    Resources(0, 100),
    Resources(500, 100, 1),
    Resources(500, 100, 2),
    Resources(500, 0, gpu_millis=400),
]


@given(
    st.lists(st.tuples(st.sampled_from(["occupy", "leave", "promise"]), st.integers(0, 3), st.sampled_from(NEEDS))),
    st.sampled_from(NEEDS),
)
def test_a_row_is_scored_just_where_a_member_fits(done: list[tuple[str, int, Resources]], need: Resources) -> None:
    table = NodeTable()
    devices = tuple(GpuDevice(index, f"g{index}", "H", 1000) for index in range(2))
    for number in range(4):
        kind = Kind(2000, 1000, ("trusted",), (("host", "b3"),), (("H", 1000),) * 2, "")
        table.put(f"n{number}", kind, devices, is_open=True)
    table.rank_names()
    fit = Fit(Shape("trusted", "host", need, 1), table)
    rows = np.arange(4)
    for what, row, other in done:
        whole = Fit(Shape("trusted", "host", other, 1), table)
        if what == "promise":
            table.promise(row, Kept(other))
        elif whole.members(table.free, rows)[row]:
            indices = table.take(row, other, ())
            table.occupy(row, other, indices)
            if what == "leave":
                table.leave(row, other, indices)
        scored = (fit.score() != NOWHERE).tolist()
        assert scored == (fit.members(table.now, rows) > 0).tolist()
        assert scored == [fit._score_of(row) != NOWHERE for row in range(4)]
        assert not (fit.nowhere() and any(scored))
        if not any(scored):
            fit.found_nowhere()
        free = np.maximum(table.now[GPUS, :4], 0)
        counted = [int((free == count).sum()) for count in range(1, 3)]
        assert (table.buckets + [0] * 3)[1:3] == counted


def test_a_job_without_gpus_starts_where_gpus_are_promised_behind_others() -> None:
    cluster = elastic()
    cluster.node("n1", 4000, gpus=1)
    cluster.submit(spec(500, gpus=1, priority=9), "holder")
    cluster.settle()
    cluster.submit(spec(500, gpus=1, priority=9), "waits")
    cluster.settle()
    assert cluster.job("waits").reserved_nodes == ("n1",)
    cluster.submit(spec(500), "sampler")
    cluster.settle()
    assert cluster.stage("sampler") == "placed"


def test_whoever_no_plan_helps_keeps_nobody_behind_from_theirs() -> None:
    cluster = elastic(Parameters(reservations_max=0))
    cluster.node("big", 8000, gpus=8)
    cluster.node("small", 1000)
    cluster.submit(spec(8000, gpus=8, priority=20), "holder")
    cluster.submit(spec(1000, priority=0), "victim")
    cluster.settle()
    assert cluster.members("victim")[0].node == "small"
    for number in range(40):
        cluster.submit(spec(100 + number, gpus=8, priority=10), f"hopeless-{number:02d}")
    cluster.submit(spec(1000, priority=5), "preemptor")
    cluster.settle()
    for _ in range(30):
        if cluster.stage("victim") == "preempting":
            break
        assert cluster.wake_at is not None, "somebody was not looked at, and nothing says when"
        cluster.advance(max(0.0, (cluster.wake_at - cluster.now) / 1e9))
    assert cluster.stage("victim") == "preempting"


def test_a_tenant_gives_back_no_more_than_it_borrows_whoever_asks_and_how_often() -> None:
    cluster = elastic()
    cluster.node("n1", 12000, gpus=12)
    for tenant in ("a", "b"):
        cluster.ask(e.QueueChanged, tenant=tenant, guaranteed=Resources(gpus=4))
    for number in range(3):
        cluster.submit(spec(100, gpus=2, tenant="b"), f"b{number}")
        cluster.submit(spec(100, gpus=2, tenant="c"), f"c{number}")
    cluster.settle()
    for number in range(2):
        cluster.submit(spec(100, gpus=2, tenant="a"), f"a{number}")
    cluster.settle()
    leaving = [name for name in ("b0", "b1", "b2", "c0", "c1", "c2") if cluster.stage(name) == "preempting"]
    assert len(leaving) == 2
    assert sum(name.startswith("b") for name in leaving) <= 1, leaving


def test_leaving_at_an_operators_word_uses_up_no_budget() -> None:
    cluster = elastic(Parameters(preemption_cooldown_seconds=0))
    cluster.node("n1", 1000)
    cluster.submit(spec(1000), "j")
    cluster.settle()
    for _ in range(3):
        cluster.start("j")
        cluster.ask(e.RequeueRequested, "j")
        cluster.settle()
        cluster.exit("j", "suspended", acknowledged=True)
        cluster.settle()
    assert (cluster.stage("j"), cluster.job("j").preemptions) == ("placed", 0)


@given(
    st.lists(
        st.tuples(st.sampled_from(["take", "take", "leave", "promise"]), st.integers(0, 9), st.sampled_from(NEEDS))
    ),
)
def test_who_is_placed_now_takes_nothing_that_is_kept(done: list[tuple[str, int, Resources]]) -> None:
    """Nor does it count on parts of devices that others will not have left."""
    table = NodeTable()
    devices = tuple(GpuDevice(index, f"g{index}", "H", 1000) for index in range(3))
    kind = Kind(1 << 20, 1 << 20, ("trusted",), (("host", "b3"),), (("H", 1000),) * 3, "")
    row = table.put("n", kind, devices, is_open=True)
    table.rank_names()
    there: list[tuple[Resources, tuple[int, ...]]] = []
    for what, which, need in done:
        fit = Fit(Shape("trusted", "host", need, 1), table)
        if what == "take" and fit.members(table.now)[row]:
            there.append((need, table.take(row, need, ())))
            table.occupy(row, *there[-1])
        elif what == "promise" and fit.members(table.later)[row]:
            if need.gpu_millis and not table.later_on(row)[GPUS]:
                continue  # a part is kept as a whole device, and there is none that nobody has a part of
            table.promise(row, Kept(need))
        elif what == "leave" and there:
            table.leave(row, *there.pop(which % len(there)))
        assert table.later_on(row)[GPUS] >= 0, "a device that is kept is held by somebody who stays"
        staying = table.devices[row].staying_millis
        assert table.later_on(row)[SHARE] == max((1000 - used for used in staying.values()), default=0)


def test_what_will_be_left_of_a_device_is_kept_though_nobody_can_have_it_yet() -> None:
    cluster = elastic(Parameters(reservations_max=0))
    cluster.node("n1", 4000, gpus=1)
    run(cluster, "stays", spec(500, gpu_millis=400))
    run(cluster, "leaves", spec(500, gpu_millis=500))
    cluster.submit(spec(500, gpu_millis=500), "waits")
    cluster.settle()
    cluster.ask(e.SuspendRequested, "leaves")
    cluster.settle()
    assert cluster.job("waits").reserved_nodes == ("n1",)
    assert cluster.job("waits").reserved_start_ns == cluster.job("leaves").deadline_ns


def test_nobody_begins_a_part_of_a_device_that_is_kept_as_a_whole() -> None:
    """All who have parts of it are leaving, and it is kept for one who needs all of it."""
    cluster = elastic()
    cluster.node("n1", 4000, gpus=1)
    run(cluster, "leaves", spec(500, gpu_millis=400))
    cluster.submit(spec(500, gpus=1, priority=1), "whole")
    assert asked_to_leave(cluster.settle()) == {"leaves": "whole"}
    cluster.submit(spec(500, gpu_millis=300), "part")
    cluster.settle()
    assert cluster.stage("part") == "pending"
    leave(cluster, "leaves")
    assert [cluster.stage(job) for job in ("whole", "part", "leaves")] == ["placed", "pending", "suspended"]


def test_a_part_beside_one_who_leaves_is_given_at_once_where_it_is_kept_for_nobody() -> None:
    cluster = elastic()
    cluster.node("n1", 4000, gpus=1)
    run(cluster, "leaves", spec(500, gpu_millis=400))
    cluster.ask(e.SuspendRequested, "leaves")
    cluster.settle()
    cluster.submit(spec(500, gpu_millis=300), "part")
    cluster.settle()
    assert cluster.stage("part") == "placed"
