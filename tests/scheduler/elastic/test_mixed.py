"""Nodes whose devices differ: who needs the large one has others leave for that one, and has it kept."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from tidegate_events import events as e
from tidegate_events.resources import GpuDevice, Resources
from tidegate_scheduler.policy.elastic.devices import Devices, accepts, members_of, use
from tidegate_scheduler.policy.elastic.devices_then import DevicesThen, Part, millis_of
from tidegate_scheduler.policy.elastic.shapes import Fit, Shape
from tidegate_scheduler.policy.elastic.table import GPUS, SHARE, Kind, NodeTable

from tests.scheduler.elastic.lab import asked_to_leave, elastic, leave, nodes_of, run
from tests.support.cluster import SECOND, Cluster, spec

SMALL, LARGE = GpuDevice(0, "uuid-0", "small", 40_000), GpuDevice(1, "uuid-1", "large", 80_000)


def mixed(nodes: int = 1) -> Cluster:
    cluster = elastic()
    for number in range(nodes):
        cluster.node(f"n{number}", 8000, devices=(SMALL, LARGE))
    return cluster


@pytest.mark.parametrize(
    "wants", [{"gpus": 1, "gpu_memory": 60_000}, {"gpus": 1, "gpu_models": ("large",)}, {"gpus": 2}]
)
def test_who_has_the_large_device_leaves_for_one_who_needs_it(wants: dict[str, object]) -> None:
    cluster = mixed()
    run(cluster, "has-large", spec(500, gpus=1, gpu_memory=60_000))
    cluster.submit(spec(500, priority=5, **wants), "waits")  # type: ignore[arg-type]
    assert asked_to_leave(cluster.settle()) == {"has-large": "waits"}
    leave(cluster, "has-large")
    assert cluster.stage("waits") == "placed"


def test_who_has_the_small_one_does_not_leave_for_one_who_needs_the_large_one() -> None:
    cluster = mixed()
    run(cluster, "has-large", spec(500, gpus=1, gpu_memory=60_000, priority=9))
    run(cluster, "has-small", spec(500, gpus=1))
    cluster.submit(spec(500, priority=5, gpus=1, gpu_memory=60_000), "waits")
    assert asked_to_leave(cluster.settle()) == {}
    assert cluster.stage("waits") == "pending"


def test_a_gang_has_others_leave_on_two_of_them() -> None:
    cluster = mixed(2)
    for name in ("a", "b"):
        run(cluster, name, spec(500, gpus=1, gpu_memory=60_000))
    cluster.submit(spec(500, priority=5, gpus=1, gpu_memory=60_000, gang=2), "gang")
    assert asked_to_leave(cluster.settle()) == {"a": "gang", "b": "gang"}
    for name in ("a", "b"):
        leave(cluster, name)
    assert sorted(nodes_of(cluster, "gang")) == ["n0", "n1"]


@pytest.mark.parametrize("nodes", [1, 30])
def test_room_is_kept_from_when_the_large_one_comes_free(nodes: int) -> None:
    """Though the small one does before: with thirty nodes, those that come free first are chosen among all."""
    cluster = mixed(nodes)
    for number in range(nodes):
        limits = {"has-large": 2000 + number, "has-small": 500}
        for name, memory in (("has-large", 60_000), ("has-small", 0)):
            job = spec(500, gpus=1, gpu_memory=memory, time_limit_seconds=limits[name])
            run(cluster, f"{name}-{number}", job)
    cluster.submit(spec(500, gpus=1, gpu_memory=60_000), "waits")
    cluster.settle()
    (node,) = cluster.job("waits").reserved_nodes
    assert cluster.job("waits").reserved_start_ns == cluster.now + (2000 + int(node[1:])) * SECOND


def test_what_is_kept_for_one_is_not_taken_by_another_that_needs_the_same() -> None:
    cluster = mixed()
    run(cluster, "has-large", spec(500, gpus=1, gpu_memory=60_000, grace=300))
    cluster.submit(spec(500, gpus=1, gpu_memory=60_000, priority=5), "first")
    cluster.settle()
    cluster.submit(spec(500, gpus=1, gpu_memory=60_000, priority=5), "second")
    cluster.settle()
    leave(cluster, "has-large")
    assert (cluster.stage("first"), cluster.stage("second")) == ("placed", "pending")


def test_beside_the_large_one_that_is_kept_the_small_one_is_given() -> None:
    cluster = mixed()
    run(cluster, "has-large", spec(500, gpus=1, gpu_memory=60_000, grace=300))
    cluster.submit(spec(500, gpus=1, gpu_memory=60_000, priority=5), "waits")
    cluster.settle()
    run(cluster, "small-will-do", spec(500, gpus=1))
    leave(cluster, "has-large")
    assert cluster.stage("waits") == "placed"


def test_who_uses_the_large_one_until_it_is_needed_leaves_then_though_the_small_one_is_free() -> None:
    cluster = mixed()
    run(cluster, "has-small", spec(500, gpus=1, time_limit_seconds=3000))
    run(cluster, "has-most-cpu", spec(6000, time_limit_seconds=3000))
    cluster.submit(spec(7000, gpus=1, gpu_memory=60_000), "waits")
    cluster.settle()
    assert cluster.job("waits").reserved_start_ns == cluster.now + 3000 * SECOND
    run(cluster, "meanwhile", spec(500, gpus=1, gpu_memory=60_000, time_limit_seconds=1000))
    cluster.ask(e.JobLimitChanged, "meanwhile", time_limit_seconds=9000)
    cluster.settle()
    cluster.exit("has-small", "completed")
    assert asked_to_leave(cluster.advance(2995)) == {"meanwhile": "waits"}


@pytest.mark.parametrize("seed", range(40))
def test_as_many_find_devices_as_can_be_given_one_after_the_other(seed: int) -> None:
    random = Random(seed)
    gpus = [GpuDevice(index, f"uuid-{index}", random.choice("ab"), random.choice([40, 80])) for index in range(4)]
    order = sorted(gpus, key=lambda gpu: (gpu.memory_mib, gpu.index))
    devices = Devices({gpu.index: gpu for gpu in gpus}, order, order)
    for gpu in random.sample(gpus, 2):
        leaves, need = random.random() < 0.5, random.choice([Resources(gpus=1), Resources(gpu_millis=500)])
        use(devices.used_millis, devices, need, (gpu.index,), 1)
        if not leaves:
            use(devices.staying_millis, devices, need, (gpu.index,), 1)
    devices.free = [gpu for gpu in order if gpu.index not in devices.used_millis]
    need = random.choice([Resources(gpus=1, gpu_memory_mib=60), Resources(gpus=2), Resources(gpu_millis=300)])
    models = random.choice([(), ("a",)])
    for which, used in (("free", devices.used_millis), ("later", devices.staying_millis)):
        given, count = dict(used), 0
        while chosen := _one_more(devices, given, need, models):
            use(given, devices, need, chosen, 1)
            count += 1
        whole = len(devices.all) - len(used)
        assert members_of(devices, need, models, whole, which) == count  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(40))
def test_as_many_find_devices_at_a_time_to_come_as_can_be_given_then(seed: int) -> None:
    """On several rows at once, with those who end before, those who come until then, and one from which all stay."""
    random, table = Random(seed), NodeTable()
    need = random.choice([Resources(gpus=1, gpu_memory_mib=60), Resources(gpus=2), Resources(gpu_millis=300)])
    fit = Fit(Shape("trusted", "host", need, 9, gpu_models=random.choice([(), ("a",)])), table)
    then = DevicesThen(table, without_leaving=False)
    used: dict[int, dict[int, int]] = {}
    for row in range(3):
        gpus = tuple(GpuDevice(each, f"u{each}", random.choice("ab"), random.choice([40, 80])) for each in (0, 1, 3, 7))
        models = tuple((gpu.model, gpu.memory_mib) for gpu in gpus)
        table.put(f"n{row}", Kind(1000, 1000, ("trusted",), (), models, ""), gpus, is_open=True)
        devices, used[row], parts = table.devices[row], {}, list[Part]()
        for gpu in random.sample(gpus, 3):
            who, ends_ns, begin_ns = random.choice(["there", "stays", "comes"]), random.choice([5, 15]), 10
            theirs = random.choice([Resources(gpus=1), Resources(gpu_millis=500)])
            if who != "comes":
                table.occupy(row, theirs, (gpu.index,))
            if who == "stays" or ends_ns > 10:
                use(used[row], devices, theirs, (gpu.index,), 1)
            if who != "stays":
                begins = begin_ns if who == "comes" else 0
                parts.append(Part(gpu.index, millis_of(theirs), ends_ns, begin_ns=begins))
        then.add(row)
        then.hold(row, parts)
    room = np.zeros((4, 3), np.int64)
    then.put(fit, room, at_ns=10, until_ns=20)
    for row in range(3):
        count = 0
        while chosen := _one_more(table.devices[row], used[row], need, fit.shape.gpu_models):
            use(used[row], table.devices[row], need, chosen, 1)
            count += 1
        whole, share = int(room[GPUS, row]), int(room[SHARE, row])
        found = whole // need.gpus if need.gpus else whole * (1000 // need.gpu_millis) + share // need.gpu_millis
        assert found == count


def _one_more(devices: Devices, used: dict[int, int], need: Resources, models: tuple[str, ...]) -> tuple[int, ...]:
    able = [gpu.index for gpu in devices.order if accepts(gpu, need, models)]
    if need.gpu_millis:
        return tuple([index for index in able if 1000 - used.get(index, 0) >= need.gpu_millis][:1])
    free = [index for index in able if index not in used]
    return tuple(free[: need.gpus]) if len(free) >= need.gpus else ()
