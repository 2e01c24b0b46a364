"""Nodes that keep failing jobs get nothing new, until an operator resumes them: automatic, bounded and journaled.

What counts is what a node did to several jobs: one job that fails again and again says little about its node. All that
goes down with a node itself is one failure, however many ran there: a node that is lost once is not taken for one that
fails jobs, but one that is lost again and again is as bad a place.

At least one of three nodes or more may be cordoned, however small a part of the cluster a node is allowed to be; and
never the last one that is open and could hold a job which waits: better a place that fails than none.

Only nodes that changed since the last pass are judged, and those that were suspicious once and could not be cordoned.
"""

from __future__ import annotations

import numpy as np
from tidegate_events.events import JobRequeued, JobSuspended, Reason

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.elastic.fit import could_hold
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.parameters import SECOND_NS, Parameters
from tidegate_scheduler.state import Node, NodeFailure

JOBS_MIN = 3
WHOLE_PERMILLE = 1000
NODES_FOR_ONE = 3
"""From so many nodes that are up on, one may be cordoned though it is more than its part of them."""


def cordon(draft: Draft, index: Index) -> bool:
    """Decide which nodes are cordoned, the worst first; say whether any is: then the next pass places."""
    parameters, decided = draft.parameters, False
    by = (parameters.cordon_failures, parameters.cordon_window_seconds)
    if index.judged_by != by:
        index.judged_by = by
        index.unsettled_nodes |= dict.fromkeys(draft.state.nodes)
    suspects = []
    for name in list(index.unsettled_nodes):
        node = draft.state.nodes[name]
        if _suspicious(node, parameters):
            suspects.append(node)
        else:
            del index.unsettled_nodes[name]
    if not suspects:
        return False
    since_ns = draft.now_ns - parameters.cordon_window_seconds * SECOND_NS
    cordoned, most = len(index.fleet.cordoned), _most(len(index.fleet.up), parameters)
    shut: set[int] = set()
    for node in sorted(suspects, key=lambda node: (-_count(node.failures, since_ns), node.name)):
        if cordoned >= most or draft.full:
            break
        row = index.table.rows[node.name]
        if _fails_jobs(node, since_ns, parameters) and not _is_last(draft, index, shut | {row}):
            draft.add_node_cordoned(node, _reason(node, since_ns, parameters))
            shut.add(row)
            cordoned, decided = cordoned + 1, True
    if decided:
        draft.cut = True
        draft.wake_by(draft.now_ns)
    return decided


def _most(up: int, parameters: Parameters) -> int:
    """Return how many of the nodes that are up may be cordoned at a time."""
    least = 1 if up >= NODES_FOR_ONE and parameters.cordon_permille else 0
    return max(least, up * parameters.cordon_permille // WHOLE_PERMILLE)


def _is_last(draft: Draft, index: Index, rows: set[int]) -> bool:
    """Say whether a job that waits, or does from this pass on, could run on open nodes, and on none but these rows."""
    closed, these = frozenset(rows), np.array(sorted(rows), np.int64)
    shapes = {line.key.shape for line in index.lines.values()}
    back = [event.job for event in draft.events if isinstance(event, JobRequeued | JobSuspended)]
    jobs = (index.state.jobs[name] for name in (*index.aside.first(held=False), *back))
    shapes |= {index.line_key(job).shape for job in jobs if not (job.held or job.cancel_requested)}
    return any(
        could_hold(fit, up_only=True) and not could_hold(fit, up_only=True, barred=closed)
        for fit in (index.fit(shape) for shape in shapes)
        if fit.suits(these).any()
    )


def _suspicious(node: Node, parameters: Parameters) -> bool:
    """Say whether there was a window in which the node failed jobs: judged until it changes, whatever the time."""
    if node.status != "up" or node.cordoned or not node.failures:
        return False
    window_ns = parameters.cordon_window_seconds * SECOND_NS
    return any(_fails_jobs(node, last.at_ns - window_ns, parameters, last.at_ns) for last in node.failures)


def _fails_jobs(node: Node, since_ns: int, parameters: Parameters, until_ns: int | None = None) -> bool:
    within = [each for each in node.failures if each.at_ns >= since_ns and (until_ns is None or each.at_ns <= until_ns)]
    if not parameters.cordon_failures or _count(within, since_ns) < parameters.cordon_failures:
        return False
    return len({failure.job for failure in within}) >= JOBS_MIN


def _count(failures: list[NodeFailure], since_ns: int) -> int:
    """Return how often the node failed since then: what went down with the node itself counts once each time."""
    within = [failure for failure in failures if failure.at_ns >= since_ns]
    crashes = {failure.at_ns for failure in within if failure.with_node}
    return len(crashes) + sum(not failure.with_node for failure in within)


def _reason(node: Node, since_ns: int, parameters: Parameters) -> Reason:
    within = [failure for failure in node.failures if failure.at_ns >= since_ns]
    return Reason(
        code="KeepsFailingJobs",
        detail=f"attempts came to grief on {node.name}, the last one of {within[-1].job}",
        numbers={
            "failures": _count(within, since_ns),
            "jobs": len({failure.job for failure in within}),
            "window_seconds": parameters.cordon_window_seconds,
        },
    )
