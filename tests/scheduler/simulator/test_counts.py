"""What is counted of the cluster while nodes are away, and of jobs that are never placed."""

from __future__ import annotations

import msgspec
from tidegate_events import events as e
from tidegate_scheduler.simulator.costs import Costs

from tests.scheduler.simulator.small import SECOND, arrival, node, run, workload
from tests.support.cluster import spec


def test_what_is_held_on_a_node_that_failed_counts_no_more() -> None:
    """The job is about to start there: nobody says that it is gone, but its devices are."""
    silent = e.NodeUnreachable(id="away", at_ns=5 * SECOND, node="n1", incarnation=1)
    work = workload([node("n1"), node("n2", gpus=1)], arrival("a", 0, spec(gpus=4), 60), facts=(silent,))
    result = run(work, Costs(start_ms=10_000))
    assert [(s.gpus_held_millis, s.gpus_total_millis) for s in result.samples][:2] == [(4000, 5000), (0, 1000)]
    assert all(sample.cpu_held_millis == 0 for sample in result.samples[1:])


def test_what_is_held_there_counts_again_when_the_node_is_back() -> None:
    facts = (
        e.NodeUnreachable(id="away", at_ns=5 * SECOND, node="n1", incarnation=1),
        msgspec.structs.replace(node("n1"), at_ns=20 * SECOND, incarnation=2),
    )
    result = run(workload([node("n1")], arrival("a", 0, spec(gpus=4), 60), facts=facts), Costs(start_ms=10_000))
    assert [job.outcome for job in result.jobs] == ["completed"]
    assert all(sample.gpus_held_millis <= sample.gpus_total_millis for sample in result.samples)
    assert max(sample.gpus_held_millis for sample in result.samples if sample.at_ns > 20 * SECOND) == 4000
