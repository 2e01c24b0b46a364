"""Who stands in no line is counted and placed as a look at each of them would say, at any time."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate_events import events as e
from tidegate_scheduler.explain import count_waiting
from tidegate_scheduler.policy import registry

from tests.scheduler.elastic.lab import elastic, looked_up
from tests.scheduler.elastic.world import told_anew
from tests.support.cluster import SECOND, Cluster, spec

ACTS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "hold", "release", "fail", "stop", "start", "wait", "cancel", "settle"]),
        st.integers(0, 7),
    ),
    max_size=40,
)


def act(cluster: Cluster, what: str, number: int) -> None:
    tenant, jobs = "tu"[number % 2], list(cluster.state.jobs)
    if what == "submit":
        cluster.submit(spec(1000, tenant=tenant, priority=number % 3, attempts=9, time_limit_seconds=50 + number))
    elif what in ("stop", "start"):
        cluster.ask(e.QueueChanged, tenant=tenant, stopped=what == "stop")
    elif what == "wait":
        cluster.now += number * SECOND
    elif what == "settle":
        cluster.settle()
    elif jobs:
        job = jobs[number % len(jobs)]
        if what == "fail":
            if cluster.stage(job) == "placed":
                cluster.start(job)
                cluster.exit(job, "failed", exit_code=1)
        elif what == "cancel":
            cluster.cancel(job)
        else:
            cluster.ask(e.HoldRequested if what == "hold" else e.ReleaseRequested, job)


def check(cluster: Cluster, now_ns: int) -> None:
    outlook = registry.outlook(cluster.state, now_ns)
    line, waiting = outlook.in_line(1000), {job.id for job in cluster.state.jobs.values() if job.waiting}
    assert {job.id for job in line} == waiting
    assert len(line) == outlook.total == len(waiting)
    assert [registry.outlook(cluster.state, now_ns).position(job) for job in line] == list(range(1, len(line) + 1))
    one_by_one = Counter((job.tenant, outlook.reasons(job, cluster.waiting)[0].code) for job in line)
    counted = count_waiting(cluster.state, cluster.waiting, now_ns)
    assert {(each.tenant, each.reason): each.jobs for each in counted} == one_by_one
    anew = registry.outlook(told_anew(cluster.frames, turned=True), now_ns)
    assert [job.id for job in anew.in_line(1000)] == [job.id for job in line]


@settings(max_examples=40, deadline=None)
@given(ACTS)
def test_each_has_its_place_and_counts_once(acts: list[tuple[str, int]]) -> None:
    cluster = elastic()
    cluster.node("n1", cpu=2000)
    for number in range(4):
        act(cluster, "submit", number)
    cluster.settle()
    for each in acts:
        act(cluster, *each)
        for seconds in (0, 3, 100, 0):
            check(cluster, cluster.now + seconds * SECOND)


def test_those_in_back_off_come_first_then_stopped_queues_then_the_held() -> None:
    cluster = elastic()
    cluster.node("n1", cpu=1000)
    for job, tenant in (("fails", "t"), ("stopped", "u"), ("held", "t"), ("fits", "t")):
        cluster.submit(spec(1000, tenant=tenant, attempts=3), job)
    cluster.settle()
    act(cluster, "stop", 1)
    cluster.ask(e.HoldRequested, "held")
    cluster.start("fails")
    cluster.exit("fails", "failed", exit_code=1)
    cluster.settle()
    cluster.submit(spec(1000), "waits")
    cluster.settle()
    outlook = registry.outlook(cluster.state, cluster.now)
    assert [job.id for job in outlook.in_line(9)] == ["waits", "fails", "stopped", "held"]
    counted = {each.reason: each.jobs for each in count_waiting(cluster.state, cluster.waiting, cluster.now)}
    assert counted == {"Reserved": 1, "BackOff": 1, "QueueStopped": 1, "Held": 1}
    assert looked_up(cluster).aside.held == {"t": 1}
