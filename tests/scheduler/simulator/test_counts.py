"""What is counted of the cluster while nodes are away, and of jobs that are never placed."""

from __future__ import annotations

import msgspec
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_scheduler.simulator import choice
from tidegate_scheduler.simulator.costs import Costs
from tidegate_scheduler.simulator.workload import Span, Truth

from tests.scheduler.simulator.small import SECOND, arrival, by_name, node, run, workload
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


def test_who_is_never_placed_has_waited_until_the_end_and_why_is_said() -> None:
    """It ran once on a node that was larger before, so nobody refuses it, and it is never placed again."""
    small = node("n1", 8000)
    shrunk = msgspec.structs.replace(small, id="again", at_ns=20 * SECOND, incarnation=2, capacity=Resources(8000, 64))
    work = workload([small], arrival("a", 0, spec(1000), 100), arrival("b", 30, spec(1000, memory=32), 10))
    away = e.NodeUnreachable(id="away", at_ns=10 * SECOND, node="n1", incarnation=1)
    work = msgspec.structs.replace(work, facts=(away, shrunk))
    found = by_name(run(work, rules=choice.rules_for(choice.Choice("fifo"), work)))
    assert (found["a"].outcome, found["b"].outcome) == ("", "completed")
    assert found["a"].reasons[0].code == "Inadmissible"
    assert found["a"].reasons[0].detail == "no node could hold a member, even if it were empty"
    assert found["a"].reasons[0].numbers["memory_mib_free"] == 64
    assert found["a"].waited_ns > 10 * SECOND


def test_what_of_a_job_no_node_has_is_said() -> None:
    image, gang = spec(image="other"), spec(gpus=4, gang=3)
    nodes = [node("n1"), node("n2", fetches_images=False)]
    for job, words in ((image, "no node has the image other"), (gang, "could hold 2 of its 3 members")):
        work = workload(nodes, arrival("a", 0, job, 10))
        result = run(work, rules=choice.rules_for(choice.Choice("best_fit"), work))
        assert words in result.jobs[0].reasons[0].detail


def test_why_a_job_was_refused_or_failed_is_kept_and_of_who_completed_nothing() -> None:
    fails = Truth((Span("default", 50),), fails_after_seconds=20)
    arrivals = (
        arrival("large", 0, spec(9000), 10),
        arrival("fails", 0, spec(1000), fails),
        arrival("ok", 0, spec(1), 5),
    )
    found = by_name(run(workload([node("n1", 8000)], *arrivals)))
    assert (found["large"].outcome, found["large"].reasons[0].code) == ("rejected", "Inadmissible")
    assert (found["fails"].outcome, found["fails"].reasons[0].code) == ("failed", "JobError")
    assert (found["ok"].outcome, found["ok"].reasons) == ("completed", ())


def test_a_policy_that_says_why_a_job_waits_is_heard() -> None:
    stopped = e.QueueChanged(id="q", at_ns=0, actor="ada", tenant="t", stopped=True)
    result = run(workload([node("n1")], arrival("a", 1, spec(1000), 10), facts=(stopped,)))
    assert result.jobs[0].outcome == ""
    assert result.jobs[0].reasons[0].code == "QueueStopped"
