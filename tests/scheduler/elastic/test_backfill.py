"""Room that is kept is used meanwhile, and never delays who it is kept for: whatever is raised, slow or told late."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate_events import events as e
from tidegate_scheduler.policy.parameters import Parameters

from tests.scheduler.elastic.lab import all_events, asked_to_leave, elastic, looked_up, nodes_of, of, run
from tests.scheduler.elastic.world import CheckedCluster, answers, tables, told_anew
from tests.support.cluster import SECOND, Cluster, spec

START_SECONDS = Parameters().start_timeout_seconds
STOP_SECONDS = Parameters().stop_grace_seconds_max


def a_gang_waits(cluster: Cluster, *, limit: int = 2000, cpu: int = 2000) -> int:
    """A gang of both nodes waits for the job on one of them; return when its room is free."""
    for node in ("n1", "n2"):
        cluster.node(node, cpu)
    run(cluster, "runs", spec(cpu, time_limit_seconds=limit))
    cluster.submit(spec(2000, gang=2), "gang")
    cluster.settle()
    start_ns = cluster.job("gang").reserved_start_ns
    assert start_ns == cluster.now + limit * SECOND
    return start_ns


def a_backfiller(**more: object) -> tuple[Cluster, int]:
    """A job was let into the gang's room on the other node: with 100 s, and a grace of 30 s."""
    cluster = elastic()
    start_ns = a_gang_waits(cluster)
    run(cluster, "meanwhile", spec(1000, grace=30, time_limit_seconds=100, **more))  # type: ignore[arg-type]
    return cluster, start_ns


def to(cluster: Cluster, at_ns: int) -> list[e.AnyEvent]:
    cluster.now = at_ns
    return cluster.settle()


def test_who_is_let_in_names_for_whom_the_room_is_kept() -> None:
    cluster, _ = a_backfiller()
    placed = [event for event in of(all_events(cluster), e.JobPlaced) if event.job == "meanwhile"]
    assert [event.backfills for event in placed] == [("gang",)]
    assert cluster.job("meanwhile").backfills == ("gang",)
    assert cluster.job("runs").backfills == ()
    cluster.exit("meanwhile", "completed")
    cluster.cancel("gang")
    run(cluster, "later", spec(1000, time_limit_seconds=100))
    assert cluster.job("later").backfills == (), "the room is nobody's any more"


def test_a_limit_counts_from_the_latest_moment_at_which_the_job_may_start() -> None:
    longest = 2000 - START_SECONDS - STOP_SECONDS
    for limit, stage in ((longest, "pending"), (longest - 1, "placed")):
        cluster = elastic()
        a_gang_waits(cluster)
        cluster.submit(spec(1000, time_limit_seconds=limit), "meanwhile")
        cluster.settle()
        assert cluster.stage("meanwhile") == stage


def test_a_limit_that_is_raised_is_taken_and_the_job_leaves_in_time_all_the_same() -> None:
    cluster, start_ns = a_backfiller(expected_seconds=2100)
    cluster.ask(e.JobLimitChanged, "meanwhile", time_limit_seconds=None)
    assert cluster.settle() == []
    assert cluster.job("gang").reserved_start_ns == start_ns, "what was told stands"
    assert cluster.wake_at == start_ns - 30 * SECOND
    assert to(cluster, start_ns - 30 * SECOND - 1) == []
    (asked,) = of(to(cluster, start_ns - 30 * SECOND), e.PreemptRequested)
    assert (asked.job, asked.for_job, asked.deadline_ns) == ("meanwhile", "gang", start_ns)
    assert (asked.reasons[0].code, asked.reasons[0].numbers) == ("Backfilled", {"start_ns": start_ns})
    cluster.now = start_ns
    cluster.exit("meanwhile", "suspended", acknowledged=True)
    cluster.settle()
    cluster.exit("runs", "stopped")
    assert cluster.stage("gang") == "placed"
    assert cluster.stage("meanwhile") == "suspended"
    assert cluster.job("meanwhile").backfills == ()


@pytest.mark.parametrize("gone", ["cancelled", "elsewhere", "not in the way"])
def test_nobody_leaves_whose_room_is_wanted_no_more(gone: str) -> None:
    cluster, start_ns = a_backfiller()
    cluster.ask(e.JobLimitChanged, "meanwhile", time_limit_seconds=None)
    if gone == "cancelled":
        cluster.cancel("gang")
    elif gone == "elsewhere":
        cluster.node("n3", 2000)
        cluster.node("n4", 2000)
    else:
        cluster.node("n2", 3000, incarnation=2, held=[e.HeldSandbox(job="meanwhile", attempt=1, rank=0)])
        assert nodes_of(cluster, "meanwhile") == ["n2"]
    cluster.settle()
    assert of(to(cluster, start_ns + 100 * SECOND), e.PreemptRequested) == []
    assert cluster.stage("meanwhile") == "running"


def test_a_device_that_two_share_comes_free_once() -> None:
    """Both end before the owner comes; who has a part of the other device is in its way all the same."""
    cluster = elastic()
    cluster.node("n1", 4000, gpus=2)
    for name in ("one", "two"):
        run(cluster, name, spec(100, gpu_millis=400, time_limit_seconds=2000))
    cluster.submit(spec(100, gpus=2), "owner")
    cluster.settle()
    start_ns = cluster.job("owner").reserved_start_ns
    run(cluster, "meanwhile", spec(100, gpu_millis=300, grace=30, time_limit_seconds=100))
    assert [cluster.members(job)[0].gpu_indices for job in ("one", "two", "meanwhile")] == [(0,), (0,), (1,)]
    cluster.ask(e.JobLimitChanged, "meanwhile", time_limit_seconds=None)
    cluster.settle()
    assert asked_to_leave(to(cluster, start_ns - 30 * SECOND)) == {"meanwhile": "owner"}


def test_a_gang_is_let_in_beside_and_into_room_that_is_kept() -> None:
    cluster = elastic()
    for node, cpu in (("n1", 2000), ("n2", 2000), ("n3", 1000)):
        cluster.node(node, cpu)
    run(cluster, "runs", spec(2000, time_limit_seconds=2000))
    cluster.submit(spec(2000, gang=2), "gang")
    cluster.settle()
    assert sorted(cluster.job("gang").reserved_nodes) == ["n1", "n2"]
    run(cluster, "small", spec(1000, gang=2, time_limit_seconds=100))
    assert set(nodes_of(cluster, "small")) <= {"n2", "n3"}
    cluster.exit("small", "completed")
    run(cluster, "wide", spec(1000, gang=3, time_limit_seconds=100))
    assert sorted(nodes_of(cluster, "wide")) == ["n2", "n2", "n3"]


@pytest.mark.parametrize("seconds", [0, 1969, 1970, 2000])
def test_an_index_made_anew_asks_the_same_to_leave(seconds: int) -> None:
    cluster, _ = a_backfiller()
    cluster.ask(e.JobLimitChanged, "meanwhile", time_limit_seconds=None)
    cluster.settle()
    at_ns = cluster.now + seconds * SECOND
    kept = answers(cluster.state, at_ns)
    assert tables(looked_up(cluster))["backfilling"] == ["meanwhile"]
    for turned in (False, True):
        assert answers(told_anew(cluster.frames, turned=turned), at_ns) == kept


# ---- a start that slips ----


def told(cluster: Cluster) -> list[tuple[int, tuple[str, ...]]]:
    """Return what was told of the gang's room since the last time."""
    return [(event.start_by_ns, event.nodes) for event in of(all_events(cluster), e.RoomReserved)]


def test_a_start_that_slips_is_told_anew_and_one_that_hardly_does_is_not() -> None:
    cluster = elastic()
    start_ns = a_gang_waits(cluster)
    for more in (30, 59):
        cluster.ask(e.JobLimitChanged, "runs", time_limit_seconds=2000 + more)
        assert cluster.settle() == []
    cluster.ask(e.JobLimitChanged, "runs", time_limit_seconds=2060)
    (anew,) = of(cluster.settle(), e.RoomReserved)
    assert (anew.start_by_ns, sorted(anew.nodes)) == (start_ns + 60 * SECOND, ["n1", "n2"])
    cluster.ask(e.JobLimitChanged, "runs", time_limit_seconds=None)
    (unknown,) = of(cluster.settle(), e.RoomReserved)
    assert unknown.start_by_ns == 0, "nobody knows"
    assert cluster.settle() == []


def test_a_start_that_is_over_is_told_anew_once_in_a_minute_at_most() -> None:
    """Who leaves is late: the agent of its node says nothing."""
    cluster = elastic()
    start_ns = a_gang_waits(cluster)
    to(cluster, start_ns)
    assert cluster.stage("runs") == "stopping"
    starts = []
    for seconds in range(10, 200, 10):
        cluster.submit(spec(9000), f"starts a pass {seconds}")
        starts += [event.start_by_ns for event in of(to(cluster, start_ns + seconds * SECOND), e.RoomReserved)]
    assert starts == [start_ns + seconds * SECOND for seconds in (60, 120, 180)]


def waits_for_the_first() -> Cluster:
    """Both nodes are full, and room is kept on the one that comes free first."""
    cluster = elastic()
    for node, limit in (("n1", 1000), ("n2", 3000)):
        cluster.node(node, 2000)
        run(cluster, f"on-{node}", spec(2000, time_limit_seconds=limit))
    cluster.submit(spec(2000), "waits")
    cluster.settle()
    assert cluster.job("waits").reserved_nodes == ("n1",)
    return cluster


def test_room_is_kept_elsewhere_where_it_then_comes_free_earlier() -> None:
    cluster = waits_for_the_first()
    cluster.ask(e.JobLimitChanged, "on-n1", time_limit_seconds=2900)
    cluster.settle()
    assert cluster.job("waits").reserved_nodes == ("n1",), "that is earliest still"
    cluster.ask(e.JobLimitChanged, "on-n1", time_limit_seconds=None)
    cluster.settle()
    assert cluster.job("waits").reserved_nodes == ("n2",)


def test_the_order_of_the_nodes_is_nothing_to_tell() -> None:
    cluster = elastic()
    a_gang_waits(cluster)
    job = cluster.job("gang")
    job.reserved_nodes = tuple(reversed(job.reserved_nodes))
    cluster.state.touch("job/gang")
    cluster.submit(spec(1000, time_limit_seconds=100), "meanwhile")
    decided = cluster.settle()
    assert of(decided, e.RoomReserved) == []
    assert cluster.stage("meanwhile") == "placed", "its room is known to come free later, in whatever order"


def test_room_that_is_closed_by_a_maintenance_is_kept_elsewhere() -> None:
    cluster = waits_for_the_first()
    start_ns = cluster.now + 500 * SECOND
    cluster.ask(e.MaintenancePlanned, name="m", nodes=("n1",), start_ns=start_ns, end_ns=start_ns + 10_000 * SECOND)
    cluster.settle()
    assert cluster.job("waits").reserved_nodes == ("n2",), "it would have run there when the maintenance begins"


# ---- never delaying ----

DOINGS = st.lists(
    st.tuples(
        st.sampled_from(["submits", "raises", "waits"]),
        st.integers(0, 9),
        st.sampled_from([100, 500, 1000, 1400]),
        st.sampled_from([20, 100, 400]),
    ),
    max_size=12,
)


class Gang:
    """A gang whose room was told to be free at a time, and others of its priority that want it meanwhile."""

    def __init__(self, limits: list[int]) -> None:
        self.cluster = CheckedCluster(Parameters(reservations_max=100))
        for number, limit in enumerate(limits):
            self.cluster.node(f"n{number}", 2000, gpus=2)
            run(self.cluster, f"runs{number}", spec(1500, gpus=2, time_limit_seconds=limit))
        self.cluster.submit(spec(1200, gpus=1, gang=len(limits)), "gang")
        self.cluster.settle()
        self.start_ns = self.cluster.job("gang").reserved_start_ns
        self._began: dict[str, int] = {}

    def does(self, what: str, number: int, amount: int, seconds: int) -> None:
        """One of the others is submitted, or its limit raised; or time passes, and what falls due happens."""
        if what == "submits":
            job = spec(amount, gpus=number % 2, grace=5 + number, tenant="tu"[number % 2], time_limit_seconds=seconds)
            self.cluster.submit(msgspec.structs.replace(job, expected_seconds=seconds if number % 3 else None))
        elif what == "raises":
            let_in = [job.id for job in self.cluster.state.jobs.values() if job.backfills]
            if let_in:
                limit = None if number % 2 else seconds * 10
                self.cluster.ask(e.JobLimitChanged, let_in[number % len(let_in)], time_limit_seconds=limit)
        self.passes(seconds if what == "waits" else 0)

    def passes(self, seconds: int) -> None:
        """Let time pass from one moment that the scheduler named to the next; members do all as late as they may."""
        until_ns = self.cluster.now + seconds * SECOND
        while self.cluster.stage("gang") == "pending":
            self.cluster.settle()
            self._what_is_due()
            wake_ns = self.cluster.wake_at
            moments = [at for at in (wake_ns, *self._due()) if at is not None and at > self.cluster.now]
            if not moments or min(moments) > until_ns:
                break
            self.cluster.now = min(moments)
        if self.cluster.stage("gang") == "pending":
            self.cluster.now = max(self.cluster.now, until_ns)

    def _due(self) -> list[int]:
        jobs = self.cluster.state.jobs.values()
        leave = [job.deadline_ns for job in jobs if job.stage in ("preempting", "stopping")]
        slow = [job.placed_ns + (START_SECONDS - 1) * SECOND for job in jobs if job.stage == "placed"]
        return leave + slow

    def _what_is_due(self) -> None:
        for job in list(self.cluster.state.jobs.values()):
            if job.stage == "placed" and self.cluster.now >= job.placed_ns + (START_SECONDS - 1) * SECOND:
                self.cluster.start(job.id)
            elif job.stage == "preempting" and self.cluster.now >= job.deadline_ns:
                self.cluster.exit(job.id, "suspended", acknowledged=True)
            elif job.stage == "stopping" and self.cluster.now >= job.deadline_ns:
                self.cluster.exit(job.id, "stopped")


@given(st.lists(st.sampled_from([900, 1500, 4000]), min_size=1, max_size=3), DOINGS)
@settings(max_examples=15, deadline=None)
def test_whatever_uses_its_room_meanwhile_the_gang_starts_when_it_was_told(
    limits: list[int], doings: list[tuple[str, int, int, int]]
) -> None:
    gang = Gang(limits)
    for doing in doings:
        gang.does(*doing)
    gang.passes(10_000)
    placed = next(event.at_ns for event in of(all_events(gang.cluster), e.JobPlaced) if event.job == "gang")
    latest_ns = gang.start_ns + STOP_SECONDS * SECOND
    assert placed <= latest_ns, f"{(placed - gang.start_ns) // SECOND} s late"
