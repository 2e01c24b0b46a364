"""What a real agent publishes of its node, its sandboxes and their processes, for as long as somebody may listen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from tidegate_events import subjects, telemetry
from tidegate_events.telemetry import NodeSample, ProcessSample, Sample, SandboxSample

from tests.executor.agent.conftest import NODE, Scheduler, component, job, until

CODE = """
import time
import tidegate
job = tidegate.init()
with job.phase("sampling"):
    for step in range(100_000):
        sum(range(20_000))
        job.report({"loss": 1.0 / (step + 1), "bad": float("nan"), "queue_depth": 3}, step=step)
        if step == 50:
            job.save(state={"step": step}, step=step, wait=True)
        time.sleep(0.005)
"""


async def test_the_three_levels_arrive_numbered_and_within_their_names(
    make_agent: Callable[..., Any], scheduler: Scheduler, client: Client
) -> None:
    heard: list[Sample] = []

    async def on_message(message: Msg) -> None:
        heard.extend(telemetry.decode(message.data))

    await client.subscribe(subjects.telemetry(NODE), cb=on_message)
    make_agent()
    await scheduler.joined()
    scheduler.want(job("j1", component("main", CODE)))

    def of(kind: type[Sample]) -> list[Any]:
        return [sample for sample in heard if isinstance(sample, kind)]

    await until(lambda: len(of(NodeSample)) >= 2)
    await until(lambda: [sample for sample in of(ProcessSample) if sample.checkpoints])
    await until(lambda: len(of(ProcessSample)) >= 3)
    assert [sample.seq for sample in heard] == sorted({sample.seq for sample in heard})
    assert {(sample.node, sample.incarnation) for sample in heard} == {(NODE, scheduler.incarnation)}
    node = of(NodeSample)[-1]
    assert set(node.gauges) <= set(telemetry.NODE_GAUGES)
    assert node.gauges["memory_used_bytes"] > 0
    process = of(ProcessSample)[-1]
    assert (process.tenant, process.job, process.attempt, process.component) == ("lab", "j1", 1, "main")
    assert (process.phase, process.not_finite) == ("sampling", ("bad",))
    assert process.metrics["queue_depth"] == 3
    steps = [sample.step for sample in of(ProcessSample) if sample.step is not None]
    assert steps == sorted(steps)
    assert steps[-1] > 50
    (saved,) = [timing for sample in of(ProcessSample) for timing in sample.checkpoints]
    assert saved.step == 50
    assert saved.copy_seconds + saved.write_seconds > 0
    sandboxes = of(SandboxSample)
    if sandboxes:  # where control groups can be used
        assert sandboxes[-1].counters["cpu_seconds"] > 0
        assert sandboxes[-1].gauges["memory_limit_bytes"] == 128 * 1024 * 1024
