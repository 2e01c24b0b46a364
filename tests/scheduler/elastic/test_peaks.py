"""Where borrowers go: by what they will ask for, though they hold no more than their default phase."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_events.spec import JobSpec
from tidegate_scheduler.policy.elastic import peaks
from tidegate_scheduler.policy.elastic.peaks import Wants
from tidegate_scheduler.policy.elastic.shapes import PLACE_BITS

from tests.scheduler.elastic.lab import elastic, leave, looked_up, nodes_of
from tests.scheduler.elastic.lent import ask, borrower, enter, go, granted, owner, run
from tests.scheduler.elastic.world import answers, told_anew
from tests.support.cluster import Cluster, spec

LOW = Resources(100, 100)


def learner(cpu: int = 1000, gpus: int = 0, memory: int = 100, **more: Any) -> JobSpec:
    """A borrower that needs little but in its learning phase."""
    return borrower(low=LOW, high=Resources(cpu, memory, gpus), **more)


def cluster_of(**cpu: int) -> Cluster:
    """Nodes of so much CPU, each with two devices."""
    cluster = elastic()
    for name, millis in cpu.items():
        cluster.node(name, millis, memory=100_000, gpus=2)
    return cluster


def placed(cluster: Cluster, *jobs: JobSpec) -> list[str]:
    """Submit the jobs one after another; return where each is."""
    names = [cluster.submit(job) for job in jobs]
    cluster.settle()
    return [node for name in names for node in nodes_of(cluster, name)]


def test_borrowers_go_apart_where_not_all_of_them_could_have_their_phases_at_once() -> None:
    cluster = cluster_of(n1=4000, n2=4000)
    assert placed(cluster, learner(4000), learner(4000)) == ["n1", "n2"]


def test_who_is_placed_in_the_same_pass_counts_though_its_default_phase_is_little() -> None:
    cluster = cluster_of(n1=4000, n2=4000)
    assert placed(cluster, learner(3000), learner(3000)) == ["n1", "n2"]


def test_who_leaves_asks_for_nothing_any_more() -> None:
    cluster = cluster_of(n1=4000, n2=4000)
    run(cluster, "first", learner(3000))
    cluster.ask(e.SuspendRequested, "first")
    cluster.settle()
    assert cluster.stage("first") == "preempting"
    assert placed(cluster, learner(3000)) == ["n1"]


def test_what_others_may_ask_for_of_what_it_does_not_want_is_no_matter() -> None:
    cluster = cluster_of(n1=4000, n2=8000)
    assert placed(cluster, learner(500, gpus=2), learner(500, gpus=2), learner(500, gpus=2)) == ["n1", "n2", "n1"]
    assert placed(cluster, learner(2000)) == ["n1"], "of two devices four are asked for, and of CPU a quarter"


def test_where_a_peak_fits_the_tightest_node_is_best() -> None:
    cluster = cluster_of(n1=8000, n2=4000, n3=2000)
    assert placed(cluster, learner(3000)) == ["n2"]
    assert placed(cluster, learner(1000)) == ["n2"]
    assert placed(cluster, learner(1000)) == ["n3"]


@pytest.mark.parametrize(
    ("job", "expected"),
    [(learner(7500), "n1"), (learner(1000, gpus=2), "n2"), (learner(7500, gpus=2), "n2")],
)
def test_where_no_peak_fits_it_goes_where_least_is_asked_for_of_what_is_scarcest(job: JobSpec, expected: str) -> None:
    cluster = cluster_of(n1=8000, n2=8000)
    assert placed(cluster, learner(1000, gpus=2)) == ["n1"]
    assert placed(cluster, learner(7500)) == ["n2"]
    assert placed(cluster, job) == [expected]


def test_what_was_granted_is_not_counted_twice() -> None:
    cluster = cluster_of(n1=8000, n2=8000)
    first = run(cluster, "first", learner(5000))
    go(cluster, first, "learning")
    assert looked_up(cluster).table.peaks.on(looked_up(cluster).table.rows["n1"]) == (0, 0, 0)
    assert placed(cluster, learner(3000)) == ["n1"], "beside the 5000 that it has there are 3000"
    assert placed(cluster, learner(3000)) == ["n2"]


def test_who_ends_asks_for_nothing_any_more() -> None:
    cluster = cluster_of(n1=4000, n2=4000)
    placed(cluster, learner(4000))
    cluster.start("j1")
    cluster.exit("j1", "completed")
    assert placed(cluster, learner(4000)) == ["n1"]


def test_a_node_that_could_never_give_a_phase_is_not_taken_though_the_default_phase_fits() -> None:
    cluster = elastic()
    cluster.node("n1", 4000)
    name = cluster.submit(learner(1000, gpus=1))
    cluster.settle()
    assert cluster.job(name).waiting
    assert cluster.waiting[name].code == "NoNode"
    cluster.node("n2", 4000, gpus=1)
    cluster.settle()
    assert nodes_of(cluster, name) == ["n2"]


def test_no_more_members_of_a_gang_are_on_a_node_than_could_have_their_phase_there() -> None:
    cluster = cluster_of(n1=8000, n2=8000)
    gang = run(cluster, "gang", learner(1000, gpus=1, gang_size=4))
    assert sorted(nodes_of(cluster, gang)) == ["n1", "n1", "n2", "n2"]
    ask(cluster, gang, "learning", ranks=(0, 1, 2, 3))
    for rank in range(4):
        enter(cluster, gang, rank=rank)
    assert {member.phase for member in cluster.members(gang)} == {"learning"}


def test_what_will_be_asked_for_keeps_nobody_out() -> None:
    cluster = cluster_of(n1=4000)
    assert placed(cluster, learner(4000), learner(4000), spec(3800, memory=100, gpus=2)) == ["n1"] * 3


def test_owners_are_placed_as_before() -> None:
    cluster = cluster_of(n1=8000, n2=4000)
    placed(cluster, learner(4000))
    assert placed(cluster, owner(low=LOW, high=Resources(3000, 100))) == ["n2"]


# ---- shares of devices ----


def with_devices(**gpus: int) -> Cluster:
    cluster = elastic()
    for name, count in gpus.items():
        cluster.node(name, 8000, memory=100_000, gpus=count)
    return cluster


def sharer(gpu_millis: int, *, of_its_own: int = 0, **more: Any) -> JobSpec:
    """A borrower that wants a share of a device when it learns, of which so much is its own."""
    low = Resources(100, 100, gpu_millis=of_its_own)
    return borrower(low=low, high=Resources(100, 100, gpu_millis=gpu_millis), **more)


def test_who_wants_shares_of_devices_goes_apart_where_one_device_has_not_both() -> None:
    cluster = with_devices(n1=1, n2=1)
    for name in ("first", "second"):
        run(cluster, name, sharer(800))
        assert granted(ask(cluster, name, "learning")) == {name: "learning"}
    assert [nodes_of(cluster, name) for name in ("first", "second")] == [["n1"], ["n2"]]


def test_shares_that_one_device_has_together_are_on_one() -> None:
    assert placed(with_devices(n1=1, n2=1), sharer(600), sharer(400), sharer(400)) == ["n1", "n1", "n2"]


def test_shares_and_whole_devices_are_counted_together() -> None:
    cluster = with_devices(n1=2, n2=2)
    assert placed(cluster, learner(100, gpus=1), sharer(600), sharer(600)) == ["n1", "n1", "n2"]
    assert placed(cluster, learner(100, gpus=1), learner(100, gpus=1)) == ["n2", "n1"]


@pytest.mark.parametrize(("gpu_millis", "node"), [(500, "n1"), (501, "n2")])
def test_a_share_is_one_part_of_one_device(gpu_millis: int, node: str) -> None:
    """On n1 half of one device is left, on n2 a whole one, which is not begun where that half will do."""
    cluster = with_devices(n1=1, n2=1)
    run(cluster, "half", spec(100, gpu_millis=500))
    assert placed(cluster, sharer(gpu_millis)) == [node]


def test_parts_of_several_devices_make_no_share() -> None:
    cluster = with_devices(n1=2)
    for name in ("first", "second"):
        run(cluster, name, spec(100, gpu_millis=600))
    cluster.node("n2", 8000, memory=100_000, gpus=2)
    assert placed(cluster, sharer(600)) == ["n2"]


def devices(cluster: Cluster, job: str) -> list[tuple[int, ...]]:
    return [member.gpu_indices for member in cluster.members(job)]


def test_who_has_a_share_of_its_own_begins_on_a_device_that_has_all_that_it_wants() -> None:
    cluster = with_devices(n1=2)
    for name in ("first", "second"):
        run(cluster, name, sharer(800, of_its_own=100))
        assert granted(ask(cluster, name, "learning")) == {name: "learning"}
    assert devices(cluster, "first") + devices(cluster, "second") == [(0,), (1,)]


def test_so_do_those_of_one_pass_and_the_members_of_a_gang() -> None:
    cluster = with_devices(n1=2)
    placed(cluster, sharer(800, of_its_own=100), sharer(800, of_its_own=100))
    assert devices(cluster, "j1") + devices(cluster, "j2") == [(0,), (1,)]
    cluster = with_devices(n1=2)
    assert devices(cluster, run(cluster, "gang", sharer(800, of_its_own=100, gang_size=2))) == [(0,), (1,)]


def test_where_no_device_has_all_that_it_wants_it_begins_where_most_is_left() -> None:
    cluster = with_devices(n1=2)
    for name, share in (("first", 700), ("second", 600)):
        run(cluster, name, spec(100, gpu_millis=share))
    assert devices(cluster, "first") + devices(cluster, "second") == [(0,), (1,)]
    assert devices(cluster, run(cluster, "third", sharer(800, of_its_own=100))) == [(1,)]
    assert devices(cluster, run(cluster, "fourth", sharer(300, of_its_own=100))) == [(0,)], "there all of it is left"


def test_a_device_that_is_kept_for_somebody_is_not_begun_though_it_suits_better() -> None:
    cluster = with_devices(n1=3)
    run(cluster, "part", sharer(900, of_its_own=100))
    run(cluster, "leaves", spec(100, gpus=1, grace=300))
    cluster.ask(e.SuspendRequested, "leaves")
    cluster.submit(spec(100, gpus=2), "kept")
    cluster.settle()
    assert cluster.job("kept").reserved_nodes == ("n1",)
    assert devices(cluster, run(cluster, "sharer", sharer(900, of_its_own=100))) == [(0,)]


# ---- gangs, and who waited for room ----


def gang(cluster: Cluster, name: str, job: JobSpec) -> list[str]:
    return sorted(nodes_of(cluster, run(cluster, name, job)))


def test_gangs_go_where_all_of_them_have_their_phases_at_once() -> None:
    cluster = cluster_of(n1=4000, n2=4000, n3=4000, n4=4000)
    job = learner(3500, gang_size=2)
    assert [gang(cluster, name, job) for name in ("first", "second")] == [["n1", "n2"], ["n3", "n4"]]
    ask(cluster, "first", "learning", ranks=(0, 1))
    assert granted(ask(cluster, "second", "learning", ranks=(0, 1))) == {"second": "learning"}


def test_where_not_all_members_have_their_phases_at_once_the_others_go_where_least_is_asked_for() -> None:
    cluster = cluster_of(n1=4000, n2=12_000, n3=4000)
    assert gang(cluster, "first", learner(4000, gang_size=4)) == ["n1", "n2", "n2", "n3"]
    assert gang(cluster, "second", learner(4000, gang_size=4)) == ["n1", "n2", "n2", "n2"], "as many as n2 can hold"


@pytest.mark.parametrize("size", [2, 4])
def test_an_intensive_gang_goes_below_the_switch_or_to_the_node_where_all_have_their_phases(size: int) -> None:
    cluster = elastic()
    for name in ("n1", "n2", "n3", "n4"):
        cluster.node(name, 7000, memory=100_000, switch=f"s{(int(name[1]) + 1) // 2}", rack="r")
    job = learner(3000, gang_size=size, communication="intensive")
    assert set(gang(cluster, "first", job)) == ({"n1"} if size == 2 else {"n1", "n2"})
    assert set(gang(cluster, "second", job)) == ({"n2"} if size == 2 else {"n3", "n4"})


def test_an_intensive_gang_goes_to_the_node_on_which_all_of_it_have_their_phases() -> None:
    cluster = cluster_of(n1=7000, n2=8000)
    job = learner(3000, gang_size=2, communication="intensive")
    assert placed(cluster, learner(3000)) == ["n1"]
    assert gang(cluster, "gang", job) == ["n2", "n2"], "n1 has left what one of them will ask for"
    cluster = with_devices(n1=2, n2=2)
    run(cluster, "half", spec(100, gpu_millis=500))
    job = sharer(600, gang_size=2, communication="intensive")
    assert gang(cluster, "gang", job) == ["n2", "n2"], "of n1 only one of them would have a part"


def test_members_who_have_not_their_phases_at_once_wait_on_as_many_nodes_as_may_be() -> None:
    cluster = cluster_of(n1=12_000, n2=12_000)
    assert gang(cluster, "first", learner(4000, gang_size=6)) == ["n1"] * 3 + ["n2"] * 3
    assert gang(cluster, "second", learner(4000, gang_size=4)) == ["n1"] * 2 + ["n2"] * 2


def test_an_intensive_gang_goes_below_the_switch_where_most_of_it_have_their_phases() -> None:
    cluster = elastic()
    for name in ("n1", "n2", "n3", "n4"):
        cluster.node(name, 6000, memory=100_000, switch="a" if name < "n3" else "b", rack="r")
    assert placed(cluster, learner(6000), learner(6000), learner(6000)) == ["n1", "n2", "n3"]
    assert gang(cluster, "gang", learner(3000, gang_size=4, communication="intensive")) == ["n3", "n3", "n4", "n4"]


def test_room_that_is_being_left_is_kept_where_all_of_the_peak_fits() -> None:
    cluster = cluster_of(n1=4000, n2=4000)
    low, high = Resources(200, 100), Resources(3000, 100)
    run(cluster, "there", borrower(low=low, high=high))
    for name, cpu in (("first", 3800), ("second", 4000)):
        run(cluster, name, spec(cpu))
    for name in ("first", "second"):
        cluster.ask(e.SuspendRequested, name)
    cluster.settle()
    for name in ("waits", "too"):
        cluster.submit(borrower(low=low, high=high), name)
    cluster.settle()
    assert cluster.job("waits").reserved_nodes == ("n2",)
    assert cluster.job("too").reserved_nodes == ("n1",), "on n2 what the other will ask for counts already"
    leave(cluster, "second")
    assert nodes_of(cluster, "waits") == ["n2"]


def test_an_index_that_was_kept_counts_what_one_that_is_made_anew_does() -> None:
    cluster = with_devices(n1=2, n2=2)
    for name in ("first", "second"):
        run(cluster, name, sharer(800, of_its_own=100))
    go(cluster, "first", "learning")
    run(cluster, "fills", spec(7800))
    cluster.submit(learner(3000, memory=60_000, gang_size=2), "waits")
    cluster.submit(sharer(500, of_its_own=100), "comes")
    found = answers(cluster.state, cluster.now)
    assert b"JobPlaced" in found[0]
    assert found == answers(told_anew(cluster.frames), cluster.now)
    assert found == answers(told_anew(cluster.frames, turned=True), cluster.now)


def test_two_shares_of_more_than_half_are_no_two_parts_of_one_device_and_a_half() -> None:
    two, room = Wants((0, 0, 600), 600).times(2), (0, 0, 1, 500)
    assert peaks.tightness(two, room, peaks.NONE, (0, 0, 2000), 0) >= peaks.CROWDED
    assert peaks.tightness(two, (0, 0, 1, 600), peaks.NONE, (0, 0, 2000), 0) < peaks.CROWDED


AMOUNT = st.integers(0, 100_000)
ROOM = st.tuples(st.integers(-4000, 600_000), AMOUNT, st.integers(-2, 40), st.integers(0, 999))
WANTS = st.builds(
    lambda cpu, memory, gpus, share, members: Wants((cpu, memory, gpus * 1000 + share), share).times(members),
    st.just(0) | st.integers(0, 50_000),
    st.just(0) | st.integers(0, 50_000),
    st.sampled_from((0, 0, 1, 8)),
    st.just(0) | st.integers(0, 999),
    st.integers(1, 4),
)


@given(WANTS, ROOM, st.tuples(AMOUNT, AMOUNT, AMOUNT), st.tuples(AMOUNT, AMOUNT, AMOUNT), st.integers(0, 1))
def test_one_row_and_many_are_counted_alike_and_a_score_is_never_nowhere(
    wants: Wants, room: tuple[int, int, int, int], asked: peaks.Peak, more: peaks.Peak, broken: int
) -> None:
    whole = (max(0, room[0]) + more[0], room[1] + more[1], max(0, room[2]) * 1000 + room[3] + more[2])
    one = peaks.tightness(wants, room, asked, whole, broken)
    columns = [np.array([each, each], np.int64).T for each in (room, asked, whole)]
    many = peaks.tightnesses(wants, *columns, np.array([broken, 0]))
    assert many[0] == one
    assert 0 <= one < 1 << (62 - PLACE_BITS)
    cpu_millis, memory_mib, device_millis = (each // wants.members for each in wants.peak)
    alone = Wants((cpu_millis, memory_mib, device_millis), wants.gpu_millis)
    beside = peaks.members_beside(alone, columns[0], columns[1], np.array([99, 99]))
    assert (one < peaks.CROWDED) == (beside[0] >= wants.members), "where its peak fits"
