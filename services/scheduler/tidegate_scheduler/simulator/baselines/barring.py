"""Who may not be placed whoever decides, and where: stopped queues and ceilings, maintenance, nodes that refused."""

from __future__ import annotations

import msgspec
from tidegate_events import events as e

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.elastic.barred import closes
from tidegate_scheduler.policy.elastic.queue import Amounts, Share, amounts, plus
from tidegate_scheduler.simulator.baselines.cluster import Cluster
from tidegate_scheduler.simulator.baselines.domains import Wanted, most_together
from tidegate_scheduler.state import Job


def rests(draft: Draft, cluster: Cluster, job: Job) -> bool:
    """Say whether a waiting job may not be placed now, and ask to be woken when time alone changes that."""
    if job.id in draft.leaving:
        return True
    if job.not_before_ns > draft.now_ns:
        draft.wake_by(job.not_before_ns)
        return True
    queue = draft.state.queues.get(job.tenant)
    if queue is None:
        return False
    return queue.stopped or (queue.ceiling is not None and _reaches(draft, cluster, job, amounts(queue.ceiling)))


def wanted_by(draft: Draft, cluster: Cluster, job: Job) -> Wanted:
    """Return what a waiting job wants, without the nodes that it may not have now."""
    state, wanted = draft.state, cluster.wanted(job)
    if not job.excluded_nodes and not state.maintenance:
        return wanted
    spec, closed = wanted.spec, set[str]()
    for window in state.maintenance.values():
        if closes(window, job, spec, draft.now_ns, draft.parameters):
            closed.update(window.nodes)
            draft.wake_by(window.end_ns)
    refused = set(job.excluded_nodes)
    others = [room for name, room in cluster.empty.items() if name not in refused and wanted.offered_by(room)]
    if refused and most_together(wanted, others) >= spec.gang_size:
        closed |= refused  # who was refused by all that could hold it tries them again
    return msgspec.structs.replace(wanted, barred=frozenset(closed))


def _reaches(draft: Draft, cluster: Cluster, job: Job, ceiling: Amounts) -> bool:
    """Say whether the tenant would hold more than its ceiling, with what this pass gave it already."""
    state, used = draft.state, cluster.used(job.tenant)
    for event in draft.events:
        if isinstance(event, e.JobPlaced) and event.tenant == job.tenant:
            used = plus(used, amounts(state.floors[event.job], len(event.members)))
    more = amounts(state.floors[job.id], state.specs[job.id].gang_size)
    return not Share(used=used).within(more, ceiling)
