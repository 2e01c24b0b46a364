"""Why jobs wait, counted: every waiting job once, by tenant and reason; and how long passes took."""

from __future__ import annotations

from tidegate_events import events as e
from tidegate_scheduler.decide import Pass, decide
from tidegate_scheduler.explain import WaitingCount, carry_over, count_waiting, explain
from tidegate_scheduler.pass_times import BOUNDS_SECONDS, PassTimes
from tidegate_scheduler.policy.parameters import Parameters

from tests.support.cluster import Cluster, spec


def test_every_waiting_job_counts_once_with_its_reason() -> None:
    cluster = Cluster()
    for job, tenant in (("j1", "lab-a"), ("j2", "lab-a"), ("j3", "lab-b")):
        submitted = e.JobSubmitted(id=job, at_ns=cluster.now, tenant=tenant, job=job, spec=spec())
        cluster.append("gateway", "g1", submitted)
    reasons = {"j1": e.Reason(code="Resources"), "j3": e.Reason(code="Priority")}
    assert count_waiting(cluster.state, reasons) == (
        WaitingCount("lab-a", "NotConsidered", 1),
        WaitingCount("lab-a", "Resources", 1),
        WaitingCount("lab-b", "Priority", 1),
    )
    assert count_waiting(Cluster().state, {}) == ()


def test_passes_fall_into_the_narrowest_bound_that_holds_them() -> None:
    passes = PassTimes()
    for seconds in (0.0, BOUNDS_SECONDS[0], 0.002, 100.0):
        passes.add(seconds)
    assert passes.counts[:3] == [2, 1, 0]
    assert passes.counts[-1] == 1
    assert passes.total_seconds == 100.003
    assert PassTimes().counts == [0] * (len(BOUNDS_SECONDS) + 1)


def _look(cluster: Cluster, earlier: dict[str, e.Reason]) -> tuple[Pass, dict[str, e.Reason]]:
    """One pass as the shell makes it: decide, take note of why jobs wait, append."""
    result = decide(cluster.state, cluster.now)
    reasons = carry_over(cluster.state, earlier, result)
    if result.events:
        cluster.append("scheduler", "s1", *result.events)
    return result, reasons


def test_a_pass_that_was_cut_short_leaves_the_others_their_reasons() -> None:
    cluster = Cluster(Parameters(decisions_per_pass_max=2), policy=1)
    cluster.node("n1", cpu=1000)
    for job in ("big", "last"):
        cluster.submit(spec(cpu=8000 if job == "big" else 1000, priority=0), job)
    cluster.submit(spec(cpu=1000, priority=9), "first")
    result, reasons = _look(cluster, {})
    assert not result.cut
    assert set(reasons) == {"big", "last"}
    before = dict(reasons)
    cluster.node("n2", cpu=4000)
    for number in range(4):
        cluster.submit(spec(cpu=1000, priority=5), f"new-{number}")
    result, reasons = _look(cluster, reasons)
    assert result.cut
    assert len(result.events) - 1 == 2
    assert "last" not in result.waiting, "the pass did not reach it"
    assert {job: reasons[job] for job in ("big", "last")} == before
    assert not any(job.startswith("new") for job in reasons), "those it placed wait no more"
    assert explain(cluster.state, reasons, "last").reasons == (before["last"],)


def test_a_job_that_was_placed_and_waits_again_does_not_say_what_it_waited_for_before() -> None:
    cluster = Cluster(Parameters(decisions_per_pass_max=1))
    cluster.submit(spec(attempts=3), "j1")
    _, reasons = _look(cluster, {})
    assert reasons["j1"].code == "NoNode"
    cluster.node("n1", cpu=1000)
    for number in range(3):
        cluster.submit(spec(), f"other-{number}")
    result, reasons = _look(cluster, reasons)
    assert result.cut
    assert cluster.stage("j1") == "placed"
    assert "j1" not in reasons


def test_an_old_back_off_is_not_kept() -> None:
    """Every pass looks at all of those, so one that it does not name is over."""
    cluster = Cluster()
    cluster.submit(spec(), "j1")
    earlier = {"j1": e.Reason(code="BackOff", numbers={"wait_ms": 900})}
    assert carry_over(cluster.state, earlier, Pass((), None, {}, cut=True)) == {}
    earlier["j1"] = e.Reason(code="Resources")
    assert carry_over(cluster.state, earlier, Pass((), None, {}, cut=True)) == earlier
    assert carry_over(cluster.state, earlier, Pass((), None, {})) == {}, "a whole pass says all there is to say"
