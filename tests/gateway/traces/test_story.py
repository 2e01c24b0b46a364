"""What a trace tells of a job that was preempted, resumed and failed: span by span."""

from __future__ import annotations

from typing import Any

import pytest
from tidegate_events import events as e
from tidegate_events import trace
from tidegate_gateway.traces import state
from tidegate_gateway.traces.derive import SpanDeriver
from tidegate_gateway.traces.span import Span, derived_id, pass_link, root_id

from tests.gateway.traces.story import HIGH, LOW, preempted_and_resumed, started
from tests.gateway.traces.telling import Telling, by_name, counted, derived
from tests.support.cluster import SECOND, Cluster, spec


def seconds(span: Span) -> float:
    return (span.end_ns - span.start_ns) / SECOND


def one(spans: list[Span]) -> Span:
    (span,) = spans
    return span


def attribute(span: Span, name: str) -> Any:
    return span.attributes.get(f"tidegate.{name}")


def running(attempts: int = 1) -> Cluster:
    """Return a cluster with a job j1 that runs."""
    cluster = Telling().cluster
    cluster.submit(spec(500, attempts=attempts), "j1")
    cluster.settle()
    started(cluster, "j1")
    cluster.advance(1)
    return cluster


def test_a_preempted_job_tells_its_life() -> None:
    spans = derived(preempted_and_resumed())
    low = by_name(spans, LOW)
    assert set(low) == {
        *("submit", "queue", "attempt", "image", "sandbox", "start", "phase sampling", "phase learning", "save"),
        *("verify", "preempt", "suspend", "resume", "restore", "end"),
    }
    assert {span.trace_id for found in low.values() for span in found} == {trace.trace_id(LOW)}
    root = one(low["submit"])
    assert (root.span_id, root.kind, root.service, seconds(root)) == (root_id(LOW), "server", "tidegate-gateway", 0)
    first, second = low["attempt"]
    assert [attribute(span, "attempt") for span in (first, second)] == [1, 2]
    assert seconds(one(low["queue"])) == 0
    assert seconds(one(low["start"])) == 2
    assert [seconds(span) for span in low["image"]] == [0.5, 0.5]
    assert [seconds(span) for span in low["phase sampling"]] == [1, 1]
    assert seconds(one(low["phase learning"])) == 5
    assert seconds(one(low["preempt"])) == 2
    assert attribute(one(low["preempt"]), "for_job") == HIGH
    assert "LeastCost" in attribute(one(low["preempt"]), "reasons")[0]
    assert seconds(one(low["suspend"])) == 6
    assert (attribute(one(low["suspend"]), "step"), attribute(one(low["suspend"]), "lost_steps")) == (12, 0)
    assert seconds(one(low["resume"])) == 1
    assert (seconds(one(low["restore"])), attribute(one(low["restore"]), "step")) == (2, 12)
    assert [attribute(span, "step") for span in low["save"]] == [10, 12]
    assert (one(low["verify"]).service, seconds(one(low["verify"]))) == ("tidegate-checkpoint", 1)
    ended, failed = low["sandbox"]
    assert (ended.status, attribute(ended, "outcome"), attribute(ended, "fault")) == ("ok", "suspended", None)
    assert (failed.status, failed.message, attribute(failed, "fault")) == ("error", "it printed a \ufffd", "job")
    end = one(low["end"])
    assert (end.status, attribute(end, "fault"), attribute(end, "preemptions")) == ("error", "job", 1)
    below_first = {span.name for found in low.values() for span in found if span.parent_id == first.span_id}
    assert below_first == {
        *("image", "sandbox", "start", "phase sampling", "phase learning", "save", "verify", "preempt")
    }


def test_spans_link_to_the_passes_that_decided_them() -> None:
    frames = preempted_and_resumed()
    spans = derived(frames)
    passes = {(span.trace_id, span.span_id): span for span in spans if not span.job}
    linked = {(link.trace_id, link.span_id) for span in spans for link in span.links}
    assert linked == set(passes), "a link leads nowhere, or a pass stands alone"
    placed = next(event for frame in frames for event in frame.frame.events if isinstance(event, e.DecisionPass))
    assert pass_link(placed.id) in one(by_name(spans, LOW)["queue"]).links
    (span,) = [each for each in passes.values() if each.attributes["tidegate.event"] == placed.id]
    assert (span.name, span.service, span.attributes["tidegate.at_seq"]) == (
        "pass",
        "tidegate-scheduler",
        placed.at_seq,
    )
    assert span.trace_id != trace.trace_id(LOW)


def test_a_lost_node_is_not_the_jobs_fault() -> None:
    cluster = running()
    node = cluster.members("j1")[0].node
    event = e.NodeLost(id="gone", at_ns=cluster.now, node=node, incarnation=1)
    cluster.append("scheduler", "s1", event)
    cluster.settle()
    found = by_name(derived(cluster.frames), "j1")
    sandbox = one(found["sandbox"])
    assert (sandbox.status, attribute(sandbox, "fault"), sandbox.message) == (
        *("error", "infrastructure"),
        "its node was lost",
    )


def test_a_resize_lasts_until_the_kernel_enforces_it() -> None:
    cluster = running()
    member = cluster.members("j1")[0]
    decided = e.QuotaChanged(
        id="q1", at_ns=cluster.now, tenant="t", job="j1", revision=0, attempt=1, rank=0, quotas=member.quotas
    )
    cluster.append("scheduler", "s1", decided)
    cluster.advance(0.25)
    cluster.node_fact("j1", member, e.QuotaApplied, quotas=member.quotas)
    resize = one(by_name(derived(cluster.frames), "j1")["resize"])
    assert (seconds(resize), attribute(resize, "applied"), resize.span_id) == (
        *(0.25, "enforced"),
        derived_id("q1", "resize", 0),
    )


def test_a_slow_job_has_a_span_until_it_recovers() -> None:
    cluster = running()
    about = {"tenant": "t", "job": "j1", "attempt": 1, "rate_millis": 1, "target_millis": 9, "window_seconds": 5}
    of_before = e.StepRateLow(id="old", at_ns=cluster.now, **{**about, "attempt": 0})  # type: ignore[arg-type]
    low = e.StepRateLow(id="low", at_ns=cluster.now, **about)  # type: ignore[arg-type]
    recovered = e.StepRateRecovered(id="up", at_ns=cluster.now + 3 * SECOND, **about)  # type: ignore[arg-type]
    cluster.append("metrics", "m1", of_before, low, recovered)
    assert counted(cluster.frames)[-1][1] == (False, True, True)
    slow = one(by_name(derived(cluster.frames), "j1")["slow"])
    assert (slow.service, seconds(slow), slow.span_id) == ("tidegate-metrics", 3, derived_id("low", "slow"))


def test_a_verdict_after_the_jobs_end_is_still_in_its_trace() -> None:
    cluster = running()
    checkpoint = cluster.save("j1", 5)
    cluster.advance(1)
    cluster.exit("j1", "completed")
    cluster.advance(1)
    verdict = e.CheckpointVerified(
        id="v", at_ns=cluster.now, tenant="t", job="j1", attempt=1, checkpoint_id=checkpoint, size_bytes=9
    )
    deriver = SpanDeriver()
    spans = derived(cluster.frames, deriver)
    assert one(by_name(spans, "j1")["end"])
    assert deriver.take_changes()["j1"] is not None, "the awaited verdict is remembered"
    (frame, counts) = counted([*cluster.frames, cluster.append("checkpoint", "c1", verdict)])[-1]
    assert counts == (False,)
    verify = one(list(deriver.apply(frame, counts)))
    assert (verify.name, seconds(verify)) == ("verify", 2)
    assert deriver.take_changes() == {"j1": None}


def test_phases_beyond_the_cap_are_summed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate_gateway.traces.members.PHASE_SPANS_PER_ATTEMPT_MAX", 3)
    cluster = running()
    for turn in range(10):
        cluster.phase("j1", ("sampling", "learning")[turn % 2])
        cluster.advance(1 + turn % 2)
    cluster.exit("j1", "completed")
    found = by_name(derived(cluster.frames), "j1")
    shown = found["phase sampling"] + found["phase learning"]
    assert len(shown) == 3
    summed = one(found["phases"])
    assert {name: summed.attributes[f"tidegate.phases.{name}"] for name in
            ("sampling.count", "sampling.seconds", "learning.count", "learning.seconds")} == {
        "sampling.count": 3, "sampling.seconds": 3.0, "learning.count": 4, "learning.seconds": 8.0,
    }  # fmt: skip
    assert summed.start_ns == max(span.end_ns for span in shown)


def test_saves_and_resizes_beyond_the_cap_are_summed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate_gateway.traces.saves.SAVE_SPANS_PER_ATTEMPT_MAX", 2)
    monkeypatch.setattr("tidegate_gateway.traces.members.RESIZE_SPANS_PER_ATTEMPT_MAX", 1)
    cluster = running()
    member = cluster.members("j1")[0]
    for turn in range(5):
        cluster.save("j1", turn)
        decided = e.QuotaChanged(
            id=f"q{turn}", at_ns=cluster.now, tenant="t", job="j1", revision=0, attempt=1, rank=0, quotas=member.quotas
        )
        cluster.append("scheduler", "s1", decided)
        cluster.advance(1)
    cluster.exit("j1", "completed")
    found = by_name(derived(cluster.frames), "j1")
    assert (len(found["save"]), attribute(one(found["saves"]), "saves.save.count")) == (2, 3)
    assert (len(found["resize"]), attribute(one(found["resizes"]), "resizes.resize.count")) == (1, 4)
    assert attribute(one(found["resizes"]), "resizes.resize.seconds") == 4.0


def test_a_trace_is_bounded_and_says_what_it_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate_gateway.traces.moment.SPANS_PER_TRACE_MAX", 6)
    spans = [span for span in derived(preempted_and_resumed()) if span.job == LOW]
    assert len(spans) == 7
    end = spans[-1]
    assert end.name == "end"
    assert attribute(end, "spans_left_out") > 5
    assert {span.parent_id for span in spans} <= {"", *(span.span_id for span in spans)}


def test_the_memory_of_a_job_stays_small_however_long_it_runs() -> None:
    assert state.PHASE_SPANS_PER_ATTEMPT_MAX == 200
    cluster = running()
    deriver = SpanDeriver()
    derived(cluster.frames, deriver)
    member = cluster.members("j1")[0]
    for turn in range(1000):
        cluster.now += SECOND
        cluster.node_fact("j1", member, e.PhaseChanged, phase=f"p{turn % 50}", _node=False)
    for frame in cluster.frames[deriver.seq :]:
        deriver.apply(frame, [True] * len(frame.frame.events))
    (data,) = deriver.take_changes().values()
    assert data is not None
    assert len(data) < 8_000


def test_a_clock_that_runs_behind_puts_nothing_before_its_attempt() -> None:
    cluster = Telling().cluster
    for node in ("n1", "n2"):
        cluster.append("scheduler", "s1", e.NodeLost(id=f"gone-{node}", at_ns=cluster.now, node=node, incarnation=1))
    cluster.submit(spec(500), "j1")
    cluster.advance(40)
    cluster.node("n1", incarnation=2)
    cluster.settle()
    placed_ns = cluster.now
    behind = e.CheckpointFailed(
        id="f",
        at_ns=placed_ns - 9 * SECOND,
        tenant="t",
        job="j1",
        attempt=1,
        stage="save",
        reason=e.Reason(code="Disk"),
    )
    phase = e.PhaseChanged(
        id="p", at_ns=placed_ns - 9 * SECOND, tenant="t", job="j1", attempt=1, rank=0, phase="sampling"
    )
    cluster.append("node", "n1", behind, phase)
    cluster.exit("j1", "completed")
    found = by_name(derived(cluster.frames), "j1")
    assert seconds(one(found["queue"])) == 40
    failed = one(found["save"])
    assert (failed.start_ns, failed.status, attribute(failed, "fault")) == (placed_ns, "error", "job")
    assert one(found["phase sampling"]).start_ns == placed_ns
