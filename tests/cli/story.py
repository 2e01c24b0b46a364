"""Histories for the command line to show, told by the scheduler's real core."""

from __future__ import annotations

from typing import Any

from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_events.spec import Component, JobSpec, PreemptionRule, ResourceRange

from tests.cli.live import LiveGateway

LOW, HIGH = "j-low", "j-high"


def training(name: str, priority: int, cpu_millis: int = 1500) -> JobSpec:
    """Return a job of simulators and a learner whose needs turn over with its phase."""
    small, large = Resources(250, 256), Resources(cpu_millis, 256)

    def component(kind: Any, busy: str, idle: str, replicas: int) -> Component:
        ranges = {busy: ResourceRange(minimum=small, maximum=large), idle: ResourceRange(minimum=small)}
        ranges["default"] = ResourceRange(minimum=small)
        return Component(name=kind, kind=kind, command=("python", "x.py"), replicas=replicas, resources=ranges)

    components = (component("simulator", "sampling", "learning", 4), component("learner", "learning", "sampling", 1))
    rule = PreemptionRule(grace_seconds=30)
    return JobSpec(name=name, tenant="t", submitter="ada", components=components, priority=priority, preemption=rule)


def save(live: LiveGateway, job: str, step: int) -> None:
    """Rank 0 commits a checkpoint of three layers, which is then verified."""
    cluster = live.cluster
    layers = tuple(
        e.LayerRef(name=name, digest=f"{step:064x}", size_bytes=4096) for name in ("model", "optimizer", "state")
    )
    attempt = cluster.job(job).attempt
    checkpoint = e.CheckpointRef(
        id=f"{step:064x}", step=step, attempt=attempt, directory=f"{step:012d}-{attempt}-0a1b2c3d", layers=layers
    )
    cluster.node_fact(job, cluster.members(job)[0], e.CheckpointSaved, checkpoint=checkpoint)
    verified = e.CheckpointVerified(
        id=f"verified-{job}-{step}", at_ns=cluster.now, tenant="t", job=job, attempt=attempt,
        checkpoint_id=checkpoint.id, size_bytes=3 * 4096,
    )  # fmt: skip
    cluster.append("checkpoint", "c1", verified)


def preempted_and_resumed(live: LiveGateway) -> None:
    """A low job trains, makes room for a high one, and comes back to its step; both complete."""
    cluster = live.cluster
    cluster.node("n1", cpu=2000, memory=2048)
    cluster.submit(training("low", priority=1), LOW)
    cluster.settle()
    cluster.advance(0.4)
    cluster.start(LOW)
    for turn in range(12):
        cluster.advance(1)
        cluster.phase(LOW, "sampling" if turn % 2 == 0 else "learning")
    save(live, LOW, 600)
    cluster.submit(training("high", priority=50), HIGH)
    cluster.advance(1)
    save(live, LOW, 640)
    cluster.advance(2)
    cluster.exit(LOW, "suspended", acknowledged=True, last_step=640)
    cluster.advance(0.2)
    cluster.start(HIGH)
    cluster.advance(20)
    cluster.exit(HIGH, "completed", exit_code=0, result={"mean_return": 201.25})
    cluster.advance(0.3)
    cluster.start(LOW)
    cluster.advance(10)
    cluster.exit(LOW, "completed", exit_code=0, result={"mean_return": 199.5})
    live.publish()


def preempting(live: LiveGateway) -> None:
    """The same until the low job is suspended and the high one runs."""
    cluster = live.cluster
    cluster.node("n1", cpu=2000, memory=2048)
    cluster.submit(training("low", priority=1), LOW)
    cluster.settle()
    cluster.start(LOW)
    cluster.advance(1)
    save(live, LOW, 40)
    cluster.submit(training("high", priority=50), HIGH)
    cluster.advance(1)
    cluster.exit(LOW, "suspended", acknowledged=True, last_step=40)
    cluster.start(HIGH)
    cluster.phase(HIGH, "learning")
    live.publish()
