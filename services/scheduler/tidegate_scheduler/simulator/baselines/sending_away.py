"""Who has to leave whoever decides: by an operator's word, or because a node goes away or has become smaller.

The rules spare nobody for being close to the end: that is a promise of the elastic policy.
"""

from __future__ import annotations

from tidegate_events import events as e

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.simulator.baselines.cluster import Cluster
from tidegate_scheduler.state import Job


def send_away(draft: Draft, cluster: Cluster) -> None:
    """Ask all to leave who have to by now."""
    for name in list(cluster.told_to_leave):
        if job := cluster.state.jobs.get(name):
            code = "SuspendRequested" if job.suspend_requested else "RequeueRequested"
            _ask(draft, cluster, job, e.Reason(code=code, detail="by an operator"))
    for name in sorted(cluster.drained):
        for job in cluster.stays_on(name):
            _ask(draft, cluster, job, e.Reason(code="NodeDrained", detail=f"{name} is cleared"))
    _clear_for_maintenance(draft, cluster)
    for name in sorted(cluster.rejoined):
        if name in cluster.state.nodes:
            _relieve(draft, cluster, name)
        if draft.full:
            return
        del cluster.rejoined[name]


def _ask(draft: Draft, cluster: Cluster, job: Job, reason: e.Reason) -> None:
    if job.id in cluster.running and job.id not in draft.leaving and not draft.full:
        draft.ask_to_leave(job, reason, hold=job.suspend_requested)
        cluster.leaves(job.id)


def _clear_for_maintenance(draft: Draft, cluster: Cluster) -> None:
    """Ask jobs to leave so late that their grace ends as the window begins."""
    for window in sorted(cluster.state.maintenance.values(), key=lambda window: (window.start_ns, window.name)):
        if draft.now_ns >= window.end_ns:
            continue
        for name in window.nodes:
            for job in cluster.stays_on(name):
                last_ns = window.start_ns - cluster.state.specs[job.id].preemption.grace_seconds * SECOND_NS
                if draft.now_ns < last_ns:
                    draft.wake_by(last_ns)
                else:
                    _ask(draft, cluster, job, e.Reason(code="Maintenance", detail=f"{name} is cleared"))


def _relieve(draft: Draft, cluster: Cluster, node: str) -> None:
    """Ask jobs to leave a node that has less than they hold, who came last first, until the rest fits."""
    there = {gpu.index for gpu in cluster.state.nodes[node].gpus}
    for job in sorted(cluster.stays_on(node), key=lambda job: -job.submitted_seq):
        lacks = any(
            index not in there for seat in cluster.running[job.id] if seat.node == node for index in seat.gpu_indices
        )
        if lacks or cluster.is_crowded(node):
            _ask(draft, cluster, job, e.Reason(code="NodeShrank", detail=f"{node} has less than it holds"))
