"""Nodes that are lost for long are forgotten, so that tables and lists hold what there is.

What an operator asked of a node, or what it is blamed for, outlives its agent's restarts, however long those take: a
node that is drained or cordoned stays until an operator resumes it, or says that it shall be forgotten.
"""

from __future__ import annotations

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.parameters import SECOND_NS


def forget(draft: Draft, index: Index) -> None:
    """Decide that nodes are forgotten, those that have not been heard for longest first."""
    bound_ns = draft.parameters.node_forgotten_seconds * SECOND_NS
    if not index.fleet.lost or not bound_ns:
        return
    first_ns = min(index.fleet.lost.values()) + bound_ns
    if draft.now_ns < first_ns:
        draft.wake_by(first_ns)
        return
    for since_ns, name in sorted((since_ns, name) for name, since_ns in index.fleet.lost.items()):
        if draft.now_ns < since_ns + bound_ns:
            draft.wake_by(since_ns + bound_ns)
            return
        if draft.full:
            return
        draft.add_node_forgotten(draft.state.nodes[name])
