"""What else a waiting job meets, beyond what the pass said of its line: nodes that are closed, kept, or held by others.

Worked out when somebody asks, once for a line of jobs that are alike, and never in a pass.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from tidegate_events.events import Reason

from tidegate_scheduler.policy.elastic.barred import closes
from tidegate_scheduler.policy.elastic.fit import could_hold, could_hold_by
from tidegate_scheduler.policy.elastic.held import count_parts
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.lacking import missing
from tidegate_scheduler.policy.elastic.order import Order
from tidegate_scheduler.policy.elastic.queue import LineKey
from tidegate_scheduler.policy.elastic.reasons import (
    how_much,
    kept_for,
    kept_rows,
    named,
    short_code,
    shortage,
)
from tidegate_scheduler.policy.elastic.shapes import Fit, Shape
from tidegate_scheduler.policy.elastic.sparing import BUDGET, COOLDOWN, PROTECTED, overrun_ns
from tidegate_scheduler.policy.elastic.victims import Victims
from tidegate_scheduler.policy.parameters import SECOND_NS, Parameters, as_parameters
from tidegate_scheduler.state import Job, Maintenance, Node

ROWS_MAX = 256
"""Closed nodes, and nodes held by the protected, that are looked at for one line."""

SHAPES_MAX = 40
"""Shapes for which one answer works out the numbers of what is short; of the others it says the code alone."""

LINES_MAX = 10
"""Lines for which one answer works out what else is in the way; of the others it says the dominant reason alone."""

SHORT = frozenset({"Resources", "GangTopology", "Priority"})
_CLOSED = {
    "NodeDrained": "drained",
    "NodeCordoned": "cordoned, for jobs kept failing there",
    "NodeAway": "away",
    "Leftovers": "still ending what was given up",
}


class Causes:
    """Looks behind the reasons of a pass at one time."""

    def __init__(self, index: Index, order: Order, now_ns: int, parameters: Parameters) -> None:
        self._index = index
        self._order = order
        self._now_ns = now_ns
        self._parameters = parameters
        self._closed: dict[Shape, tuple[Reason, ...]] = {}
        self._short: dict[Shape, Reason] = {}
        self._codes: dict[Shape, str] = {}
        self._kept_rows = kept_rows(index)
        self._others: dict[tuple[LineKey, str], tuple[Reason, ...]] = {}

    def dominant(self, job: Job, key: LineKey, said: Reason) -> Reason:
        """Return what the pass said, or what it really is: that all nodes which could hold the job are closed."""
        if said.code == "NoNode":
            closed = self.closed(key.shape)
            return closed[0] if closed else missing(self._index.fit(key.shape))
        if said.code in SHORT and self._index.state.maintenance:
            return self._maintenance(job, key.shape) or said
        return said

    def others(self, job: Job, key: LineKey, dominant: Reason) -> tuple[Reason, ...]:
        """Return what else is in the job's way: as for the first of its line, whoever is asked about."""
        if job.held or dominant.code == "BackOff":
            return tuple(self._beside_an_order(job, dominant))
        if job.cancel_requested:
            return ()  # it stands in no line any more
        found = self._others.get((key, dominant.code))
        if found is None:
            if len(self._others) >= LINES_MAX:
                return ()
            found = self._others[key, dominant.code] = tuple(self._beside(self._first_of_line(job), key, dominant))
        return found

    def _first_of_line(self, job: Job) -> Job:
        standing = self._index.standing(job.id)
        return job if standing is None else self._index.state.jobs[standing[0].waiters[0].job]

    def _beside_an_order(self, job: Job, dominant: Reason) -> Iterable[Reason]:
        if self._index.share(job.tenant).stopped:
            yield queue_stopped(job.tenant)
        if dominant.code == "Held" and job.not_before_ns > self._now_ns:
            yield Reason(code="BackOff", numbers={"wait_ms": (job.not_before_ns - self._now_ns) // 1_000_000})

    def _beside(self, job: Job, key: LineKey, dominant: Reason) -> Iterable[Reason]:
        if dominant.code in ("Resources", "GangTopology", "Reserved"):
            kept = self._kept(job, key.shape)
            if kept is not None:
                yield kept
        if dominant.code in SHORT or dominant.code == "Reserved":
            spared = self._spared(job, key.shape)
            if spared is not None:
                yield spared
        if dominant.code != "QueueStopped":
            yield from (each for each in self.closed(key.shape) if each.code != dominant.code)

    def short(self, shape: Shape) -> Reason:
        """Return what is short for the shape; beyond SHAPES_MAX shapes only that something is."""
        if (found := self._short.get(shape)) is None:
            in_full = len(self._short) < SHAPES_MAX
            fit = self._index.fit(shape)
            found = shortage(self._index, fit) if in_full else Reason(code=self.short_code(shape))
            self._short[shape] = found
        return found

    def short_code(self, shape: Shape) -> str:
        """Return the code of `short`, without working out its numbers."""
        if shape in self._short:
            return self._short[shape].code
        if (code := self._codes.get(shape)) is None:
            code = self._codes[shape] = short_code(self._index, self._index.fit(shape), self._kept_rows)
        return code

    # ---- nodes that are closed ----

    def closed(self, shape: Shape) -> tuple[Reason, ...]:
        """Return why nodes that could hold a member take none, the reason of most nodes first."""
        if shape not in self._closed:
            self._closed[shape] = self._find_closed(self._index.fit(shape))
        return self._closed[shape]

    def _find_closed(self, fit: Fit) -> tuple[Reason, ...]:
        table = fit.table
        holds = fit.holds_empty()
        rows = np.flatnonzero((holds > 0) & ~table.open[: len(holds)])[:ROWS_MAX].tolist()
        by_code: dict[str, list[str]] = {}
        for row in rows:
            by_code.setdefault(closed_code(self._index.state.nodes[table.names[row]]), []).append(table.names[row])
        order = sorted(by_code, key=lambda code: (-len(by_code[code]), list(_CLOSED).index(code)))
        return tuple(
            Reason(
                code=code,
                detail=f"nodes that could hold it are {_CLOSED[code]}: {named(sorted(by_code[code]))}",
                numbers={"nodes": len(by_code[code])},
            )
            for code in order
        )

    # ---- nodes that come to their maintenance ----

    def _maintenance(self, job: Job, shape: Shape) -> Reason | None:
        """Return the window that keeps the job from every node that could hold it, None where others could."""
        rows = self._index.table.rows
        windows = closing(self._index, job, self._now_ns)
        barred = frozenset(rows[name] for window in windows for name in window.nodes if name in rows)
        if not barred or could_hold(self._index.fit(shape), up_only=True, barred=barred):
            return None
        first = min(windows, key=lambda window: (window.end_ns, window.name))
        numbers = {"start_ns": first.start_ns, "end_ns": first.end_ns, "nodes": len(first.nodes)}
        if self._now_ns >= first.start_ns:
            detail = f"its nodes are in maintenance: {first.name}"
        else:
            detail = f"it might still run when its nodes go into maintenance: {first.name}; a shorter time limit helps"
        return Reason(code="Maintenance", detail=detail, numbers=numbers)

    # ---- nodes that others hold, or that are kept for others ----

    def _kept(self, job: Job, shape: Shape) -> Reason | None:
        """Return for whom in front of the job room is kept on nodes that it could use."""
        index, rows, state = self._index, self._index.table.rows, self._index.state
        suits = index.fit(shape).suits(np.arange(len(index.table)))
        kept = [
            state.jobs[name]
            for name in index.reserving
            if self._order.is_ahead(name, job.id)
            and any(suits[rows[node]] for node in state.jobs[name].reserved_nodes if node in rows)
        ]
        if not kept:
            return None
        kept.sort(key=lambda other: (-other.priority, other.submitted_seq, other.id))
        return Reason(code="Priority", detail=kept_for(kept), numbers=how_much(index, kept))

    def _spared(self, job: Job, shape: Shape) -> Reason | None:
        """Return who would have to leave for the job, and is spared: None where that would not help."""
        index = self._index
        if any(index.leaving(name) for node in job.reserved_nodes for name in self._on(node)):
            return None  # room is being made
        victims = Victims(index, self._now_ns, self._parameters, set())
        rows = self._could_hold_without(job, index.fit(shape))
        by_why: dict[str, list[Job]] = {}
        for row in rows:
            for name in index.on_row.get(row, ()):
                other = index.state.jobs[name]
                why = victims.spared(other) if other.priority < job.priority else ""
                if why and other.stage in ("placed", "running") and other not in by_why.get(why, ()):
                    by_why.setdefault(why, []).append(other)
        spared = [other for why in (PROTECTED, COOLDOWN, BUDGET) for other in by_why.get(why, ())]
        if not spared:
            return None
        numbers = {
            "protected": len(by_why.get(PROTECTED, ())),
            "cool_down": len(by_why.get(COOLDOWN, ())),
            "budget": len(by_why.get(BUDGET, ())),
        }
        until = [at_ns for why, jobs in by_why.items() for other in jobs if (at_ns := self._until(other, why))]
        numbers |= {"until_ns": min(until)} if until else {}
        detail = f"may not be asked to leave: {named([other.id for other in spared])}"
        return Reason(code="Protected", detail=detail, numbers=numbers)

    def _on(self, node: str) -> Iterable[str]:
        row = self._index.table.rows.get(node)
        return () if row is None else self._index.on_row.get(row, ())

    def _could_hold_without(self, job: Job, fit: Fit) -> list[int]:
        """Return the rows that hold members once all of lower priority have left; none where the gang needs more."""
        index, table = self._index, self._index.table
        lower = [held for priority, held in index.held.items() if priority < job.priority]
        if not lower:
            return []
        room = table.later.copy()
        for held in lower:
            held.add_to(room)
        need = fit.shape.need
        for row in (table.rows[node] for node in job.reserved_nodes if node in table.rows):
            room[:3, row] += (need.cpu_millis, need.memory_mib, need.gpus or (1 if need.gpu_millis else 0))  # its own
        count_parts(room, table.later)
        holds = fit.members(room, np.arange(len(table)), "any")
        if not could_hold_by(fit, holds):
            return []
        return [int(row) for row in np.flatnonzero(holds > 0)[:ROWS_MAX]]

    def _until(self, job: Job, why: str) -> int:
        """Return when a job is spared no more, 0 where only its end ends that."""
        if why == COOLDOWN:
            return (job.started_ns or job.placed_ns) + self._parameters.preemption_cooldown_seconds * SECOND_NS
        return (overrun_ns(self._index.state, job, self._parameters) or 0) if why == PROTECTED else 0


def queue_stopped(tenant: str) -> Reason:
    """Return that the tenant's queue is stopped."""
    return Reason(code="QueueStopped", detail=f"the queue of {tenant}")


def closed_code(node: Node) -> str:
    """Return why the node takes nobody, empty where it is open."""
    if node.status != "up":
        return "NodeAway"
    if node.drain_deadline_ns:
        return "NodeDrained"
    if node.cordoned:
        return "NodeCordoned"
    return "Leftovers" if node.zombies else ""


def closing(index: Index, job: Job, now_ns: int) -> list[Maintenance]:
    """Return the windows that begin before the job, placed now, has certainly ended."""
    state = index.state
    parameters, spec = as_parameters(state.header.parameters), state.specs[job.id]
    return [each for each in state.maintenance.values() if closes(each, job, spec, now_ns, parameters)]
