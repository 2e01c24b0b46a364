"""No job waits for ever: whatever stream of others never ends, each job has its turn within a bound."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_events.spec import JobSpec
from tidegate_scheduler.policy.elastic.queue import FairOrder, Line, LineKey, Share, Turns, Waiter, aged
from tidegate_scheduler.policy.elastic.shapes import Fit, Shape
from tidegate_scheduler.policy.elastic.table import NodeTable
from tidegate_scheduler.policy.parameters import Parameters

from tests.scheduler.elastic.world import CheckedCluster
from tests.support.cluster import spec

AGEING_SECONDS = 600
STEP_SECONDS = 50
RUN_SECONDS_MAX = 400
HIGHEST = 3

BIG: dict[str, JobSpec] = {
    "a whole node": spec(4000),
    "all nodes": spec(4000, gang=2),
    "one switch": spec(2500, gang=2, communication="intensive", locality_wait_seconds=100),
    "all devices of a node": spec(100, gpus=4),
    "small, with a limit": spec(500, time_limit_seconds=900),
    "of a tenant that has much": spec(4000, tenant="a"),
}


class Stream:
    """Jobs that come without end, more than there is room for, and run for a bounded time."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.cluster = CheckedCluster(Parameters(ageing_seconds=AGEING_SECONDS, preemption_cooldown_seconds=30))
        for node in ("n1", "n2"):
            self.cluster.node(node, 4000, gpus=4, switch="s")
        self._ends: dict[tuple[str, int], int] = {}

    def step(self) -> None:
        """Let some more come, and let what ran for its time end."""
        for _ in range(self._random.randint(1, 3)):
            limit = self._random.choice([None, 2 * RUN_SECONDS_MAX])
            self.cluster.submit(
                spec(
                    self._random.choice([300, 1000, 2000]),
                    gpus=self._random.choice([0, 0, 1]),
                    tenant=self._random.choice("abc"),
                    priority=self._random.randint(0, HIGHEST),
                    time_limit_seconds=limit,
                )
            )
        self.cluster.settle()
        for job in sorted(self.cluster.state.jobs):
            self._go_on(job)
        self.cluster.advance(STEP_SECONDS)

    def _go_on(self, name: str) -> None:
        job = self.cluster.state.jobs.get(name)
        if job is None or job.waiting:
            return
        if job.stage == "preempting":
            self.cluster.exit(name, "suspended", acknowledged=True)
            return
        self.cluster.start(name)
        end = self._ends.setdefault((name, job.attempt), self._random.randint(STEP_SECONDS, RUN_SECONDS_MAX))
        job = self.cluster.state.jobs[name]
        if job.stage == "running" and self.cluster.now - job.started_ns >= end * 1_000_000_000:
            self.cluster.exit(name, "completed")


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", BIG)
def test_a_stream_that_never_ends_lets_every_job_have_its_turn(kind: str, seed: int) -> None:
    stream = Stream(seed)
    for _ in range(4):
        stream.step()
    stream.cluster.submit(BIG[kind], "patient")
    began = stream.cluster.now
    bound = (HIGHEST + 2) * AGEING_SECONDS + 4 * RUN_SECONDS_MAX
    while "patient" not in stream.cluster.state.finished:
        stream.step()
        waited = (stream.cluster.now - began) // 1_000_000_000
        assert waited <= 2 * bound, f"{waited} s: {stream.cluster.waiting.get('patient')}"
    placed = next(
        event.at_ns
        for recorded in stream.cluster.frames
        for event in recorded.frame.events
        if isinstance(event, e.JobPlaced) and event.job == "patient"
    )
    assert (placed - began) // 1_000_000_000 <= bound


JOBS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 20)), min_size=1, max_size=30)


@given(JOBS)
def test_a_job_in_a_line_of_alike_jobs_ages_with_its_own_time_of_waiting(jobs: list[tuple[str, int, int]]) -> None:
    """Some came back only now and were submitted first: they hide nobody who has waited longer."""
    shape, now_ns, ageing_ns = Shape("trusted", "host", Resources(1), 1), 20, 4
    lines: dict[LineKey, Line] = {}
    classes: dict[str, int] = {}
    for number, (tenant, priority, since_ns) in enumerate(jobs):
        key = LineKey(tenant, priority, shape, 0)
        line = lines.setdefault(key, Line(key, Fit(shape, NodeTable())))
        line.waiters.add(Waiter(since_ns, number, str(number)))
        classes[str(number)] = aged(priority, since_ns, now_ns, ageing_ns)
    turns = Turns({"a": Share(), "b": Share()}, FairOrder((1, 1, 1), [1]), now_ns, ageing_ns)
    for line in lines.values():
        turns.enter(line)
    asked = []
    for turn in turns:
        assert turn.level == classes[turn.job]
        asked.append(turn.job)
        turns.go_on(turn)
    assert sorted(asked) == sorted(classes)
    assert [classes[job] for job in asked] == sorted(classes.values(), reverse=True), (
        "nobody is passed by a lower class"
    )


def test_who_was_suspended_a_moment_ago_does_not_hold_up_an_alike_one_that_has_waited_for_hours() -> None:
    cluster = CheckedCluster(Parameters(ageing_seconds=AGEING_SECONDS, reservations_max=0))
    cluster.node("n1", 2000)
    cluster.submit(spec(2000, priority=9), "long")
    cluster.settle()
    cluster.start("long")
    cluster.submit(spec(2000), "early")
    cluster.submit(spec(2000), "late")
    cluster.advance(3 * AGEING_SECONDS)
    early = cluster.job("early")
    early.suspended_ns = cluster.now  # as if it had run a moment, and left for somebody
    cluster.state.touch("job/early")
    cluster.submit(spec(2000, priority=1), "newcomer")
    cluster.settle()
    cluster.exit("long", "completed")
    assert [cluster.stage(job) for job in ("late", "newcomer", "early")] == ["placed", "pending", "pending"]
