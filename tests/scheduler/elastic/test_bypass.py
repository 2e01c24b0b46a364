"""No job waits for ever: whatever stream of others never ends, each job has its turn within a bound."""

from __future__ import annotations

import random

import pytest
from tidegate_events import events as e
from tidegate_events.spec import JobSpec
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
