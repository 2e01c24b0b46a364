"""What any rules refuse: a job that no nodes of the cluster could hold, were they all empty."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate_events import events as e

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.simulator.baselines.cluster import Cluster, Standing
from tidegate_scheduler.simulator.baselines.domains import most_together
from tidegate_scheduler.simulator.never import why_never


def refuse(draft: Draft, cluster: Cluster) -> None:
    """Reject who never had a place and can never have one; until that is certain nobody waits behind them.

    Nodes and images may come still, so it is certain once it has been so for as long as the parameters say.
    """
    if not draft.state.nodes:
        return
    for kind, line in cluster.lines.items():
        if kind in cluster.possible:
            continue
        if cluster.nodes_changed or kind not in cluster.hopeless:
            if _possible(cluster, line[0][2]):
                cluster.possible.add(kind)
                cluster.hopeless.pop(kind, None)
                continue
            cluster.hopeless.setdefault(kind, draft.now_ns)
        _reject(draft, line, cluster.hopeless[kind])
    cluster.nodes_changed = False


def _possible(cluster: Cluster, job: str) -> bool:
    wanted = cluster.wanted(cluster.state.jobs[job])
    offered = (room for room in cluster.empty.values() if wanted.offered_by(room))
    return most_together(wanted, offered) >= wanted.spec.gang_size


def _reject(draft: Draft, line: Iterable[Standing], hopeless_ns: int) -> None:
    for *_, name in line:
        job = draft.state.jobs[name]
        if draft.full:
            return
        if job.attempt > 0 or name in draft.leaving:
            continue
        due_ns = max(job.submitted_ns, hopeless_ns) + draft.parameters.inadmissible_after_seconds * SECOND_NS
        if draft.now_ns < due_ns:
            draft.wake_by(due_ns)
        else:
            draft.add(e.JobRejected, job, why_never(draft.state, name))
            draft.leaving.add(name)
