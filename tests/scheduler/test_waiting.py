"""Why jobs wait, counted: every waiting job once, by tenant and reason; and how long passes took."""

from __future__ import annotations

from tidegate_events import events as e
from tidegate_scheduler.explain import WaitingCount, count_waiting
from tidegate_scheduler.pass_times import BOUNDS_SECONDS, PassTimes

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
