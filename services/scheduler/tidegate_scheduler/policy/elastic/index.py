"""What the policy needs of the state, kept up with it by what changed since the last pass: a cache, never a source.

An index that was kept up and one that is made anew from the same state give the same decisions; tests hold them
together. Nothing here depends on the order in which things became known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate_events.events import Quota

from tidegate_scheduler.policy.elastic.accounts import Accounts
from tidegate_scheduler.policy.elastic.aside import Aside
from tidegate_scheduler.policy.elastic.asking import Asking
from tidegate_scheduler.policy.elastic.entries import Entry, Seat, held_by, seat_of
from tidegate_scheduler.policy.elastic.fleet import Fleet, kind_of
from tidegate_scheduler.policy.elastic.held import Held, has_more
from tidegate_scheduler.policy.elastic.queue import Amounts, Line, LineKey, Share, Waiter, plus
from tidegate_scheduler.policy.elastic.settling import Settling
from tidegate_scheduler.policy.elastic.shapes import Fit, Shape
from tidegate_scheduler.policy.elastic.standing import Standing
from tidegate_scheduler.policy.elastic.table import NodeTable
from tidegate_scheduler.policy.sharing import Seated, is_fixed
from tidegate_scheduler.state import LEAVING_STAGES, Job, Node, State

if TYPE_CHECKING:
    from tidegate_scheduler.policy.elastic.plain import Sharer

SharedRow = tuple[int, list[Seated], dict[tuple[str, int], tuple[Quota, ...]]]
"""The CPU of a row, among whom it was shared, and their quotas."""


class Index:
    """Tables over one state. `refresh` brings them up to date; a pass may try things on `table` and takes them back."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.table = NodeTable()
        self._accounts = Accounts()
        self._standing = Standing(state, self.table)
        self.settling = Settling(state)
        self.unsettled_nodes: dict[str, None] = {}
        self.judged_by: tuple[int, int] | None = None
        """The parameters by which the nodes that are settled were judged."""

        self.fleet = Fleet()
        self.held: dict[int, Held] = {}
        self.left: dict[int, int] = {}
        """How many members are leaving each row."""

        self.unshared: dict[int, None] = {}
        self.shared: dict[int, SharedRow] = {}
        """How the last pass shared the rows on which it placed somebody."""

        self.scaled: dict[int, dict[str, None]] = {}
        """By row the jobs that have more simulators there than they are guaranteed, or had."""

        self.asking = Asking(state)
        self.overfull: dict[int, None] = {}
        self.reserving: dict[str, None] = {}
        self.backfilling: dict[str, None] = {}
        """The jobs that were let into room that is kept for others."""

        self.on_row: dict[int, dict[str, None]] = {}
        self.sharers: dict[str, tuple[Sharer, ...] | None] = {}
        """By job what `plain` knows of its members, until the job changes."""

        self.longest_grace_ns: dict[int, int | None] = {}
        """By row what `leave` knows of who is there, until one of them changes."""

        self._elastic: dict[str, bool] = {}
        self._elastic_on: dict[int, int] = {}
        self._promised_on: dict[int, dict[str, None]] = {}
        self._entries: dict[str, Entry] = {}
        self._ranked = -1
        self._pending: dict[str, None] = {}
        for name in state.nodes:
            self._pending[f"node/{name}"] = None
        for tenant in state.queues:
            self._pending[f"queue/{tenant}"] = None
        for job in state.jobs:
            self._pending[f"job/{job}"] = None
        state.watch(self._pending)

    # ---- keeping up ----

    def refresh(self, now_ns: int) -> None:
        """Take in what changed, and what time has brought due."""
        changed = list(self._pending)
        self._pending.clear()
        jobs: dict[str, None] = {}
        nodes: list[str] = []
        for key in changed:
            kind, _, name = key.partition("/")
            if kind == "job":
                jobs[name] = None
            elif kind == "node":
                nodes.append(name)
            elif kind == "queue":
                self._accounts.set_queue(name, self.state.queues.get(name))
        if jobs or nodes:
            self.table.changes.begin_round()
        for name in nodes:
            row = self.table.rows.get(name)
            if row is not None:
                jobs |= self.on_row.get(row, {}) | self._promised_on.get(row, {})
        for job in jobs:
            self._leave(job)
        for name in nodes:
            self._put_or_drop(name)
        if self._ranked != self.table.renamed:
            self.table.rank_names()
            self._ranked = self.table.renamed
        for job in jobs:
            self._enter(job)
        self._standing.refresh(now_ns)
        self.settling.wake(now_ns)

    @property
    def next_ns(self) -> int | None:
        """Return when time alone changes something next, None where nothing is known to be due."""
        return min((at for at in (self.settling.next_ns, self._standing.next_ns) if at is not None), default=None)

    # ---- who waits ----

    @property
    def lines(self) -> dict[LineKey, Line]:
        """Return the lines of the jobs that wait."""
        return self._standing.lines

    @property
    def aside(self) -> Aside:
        """Return the jobs that wait and stand in no line: held, in back-off, or about to be cancelled."""
        return self._standing.aside

    def standing(self, job: str) -> tuple[Line, Waiter] | None:
        """Return the line that the job stands in and its part of it, None where it stands aside."""
        return self._standing.of(job)

    def line_key(self, job: Job) -> LineKey:
        """Return which line the job stands in while it waits."""
        return self._standing.key(job)

    def fit(self, shape: Shape) -> Fit:
        """Return where the shape fits."""
        return self._standing.fit(shape)

    # ---- nodes ----

    def _put_or_drop(self, name: str) -> None:
        if name in self.state.nodes:
            self._put_node(self.state.nodes[name])
        elif name in self.table.rows:
            self._drop_node(name)

    def _put_node(self, node: Node) -> None:
        self._accounts.count(node)
        is_open = node.status == "up" and not node.zombies and not node.cordoned and not node.drain_deadline_ns
        row = self.table.put(node.name, kind_of(node), node.gpus, is_open=is_open)
        self.table.sites.put(row, node.name, rack=node.rack, switch=node.switch)
        self.unshared[row] = None
        self.unsettled_nodes[node.name] = None
        self.fleet.put(node)

    def _drop_node(self, name: str) -> None:
        """Take a node out that is forgotten: whoever held or was promised room there has left it before."""
        row = self.table.drop(name)
        for rows in (self.unshared, self.overfull, self.on_row, self._promised_on, self.scaled):
            rows.pop(row, None)
        self.unsettled_nodes.pop(name, None)
        self.fleet.drop(name)

    # ---- tenants ----

    @property
    def shares(self) -> dict[str, Share]:
        """Return the accounts of the tenants that are known."""
        return self._accounts.shares

    @property
    def total(self) -> Amounts:
        """Return the whole of the cluster, of which tenants have their shares."""
        return self._accounts.total

    def share(self, tenant: str) -> Share:
        """Return the tenant's account."""
        return self._accounts.share(tenant)

    # ---- jobs ----

    def _leave(self, name: str) -> None:
        entry = self._entries.pop(name, None)
        if entry is None:
            return
        self.sharers.pop(name, None)
        self.asking.leave(name, self.table)
        for seat in entry.seats:
            self.table.vacate(seat.row, seat.holds(entry.need), seat.gpu_indices, leaving=entry.leaving)
            self._mark(seat.row)
            self.on_row[seat.row].pop(name, None)
            if name in self.scaled.get(seat.row, {}):
                del self.scaled[seat.row][name]
                if not self.scaled[seat.row]:
                    del self.scaled[seat.row]
        if entry.seats:
            self._use(entry, -1)
        for row in entry.promised:
            self.table.release(row, entry.need)
            self._promised_on[row].pop(name, None)
            self.unshared[row] = None
        self.reserving.pop(name, None)
        self.backfilling.pop(name, None)
        self._standing.leave(name)

    def _enter(self, name: str) -> None:
        job = self.state.jobs.get(name)
        self.settling.changed(name)
        if job is None:
            self._elastic.pop(name, None)
            return
        entry = Entry(job.tenant, job.priority, self.state.floors[name], self._is_elastic(name))
        self._entries[name] = entry
        if job.waiting:
            self._promise(job, entry)
            self._standing.enter(job)
            return
        self._seat(job, entry)

    def _seat(self, job: Job, entry: Entry) -> None:
        rows = self.table.rows
        if job.backfills:
            self.backfilling[job.id] = None
        entry.leaving = job.stage in LEAVING_STAGES
        here = [(rows[member.node], member) for member in job.members if member.active and member.node in rows]
        entry.seats = tuple([seat_of(row, member) for row, member in here])
        if self.state.specs[job.id].phase_entry == "asked":
            self.asking.enter(job, entry.seats, self.table)
        for seat in entry.seats:
            self.table.occupy(seat.row, seat.holds(entry.need), seat.gpu_indices, leaving=entry.leaving)
            self._mark(seat.row)
            self.on_row.setdefault(seat.row, {})[job.id] = None
        for row, member in here:
            if member.returns_mib or has_more(member):
                self.scaled.setdefault(row, {})[job.id] = None
        if entry.seats:
            self._use(entry, 1)

    def _is_elastic(self, job: str) -> bool:
        if job not in self._elastic:
            self._elastic[job] = not is_fixed(self.state.specs[job])
        return self._elastic[job]

    def _use(self, entry: Entry, sign: int) -> None:
        """Count what the job holds for its tenant, and that somebody of its priority holds something."""
        share = self.share(entry.tenant)
        whole = held_by(entry.need, entry.seats)
        share.used = plus(share.used, whole, sign)
        if entry.leaving:
            share.leaving = plus(share.leaving, whole, sign)
        if entry.elastic:
            for seat in entry.seats:
                self._elastic_on[seat.row] = self._elastic_on.get(seat.row, 0) + sign
        if entry.leaving:
            for seat in entry.seats:
                self.left[seat.row] = self.left.get(seat.row, 0) + sign
                if not self.left[seat.row]:
                    del self.left[seat.row]
            return
        held = self.held.get(entry.priority)
        if held is None:
            held = self.held[entry.priority] = Held()
        held.count(entry.need, [seat.row for seat in entry.seats if seat.extra is None], sign)
        for seat in entry.seats:
            if seat.extra is not None:
                held.count(seat.holds(entry.need), [seat.row], sign)
        if not held.members:
            del self.held[entry.priority]

    def elastic(self, job: str) -> bool:
        """Say whether the job's CPU may differ from phase to phase, or be lent."""
        entry = self._entries.get(job)
        return entry is None or entry.elastic

    def elastic_on(self, row: int) -> bool:
        """Say whether a member on the row is one of an elastic job."""
        return self._elastic_on.get(row, 0) > 0

    def seats_of(self, job: str) -> tuple[Seat, ...]:
        """Return where the job's members are."""
        entry = self._entries.get(job)
        return entry.seats if entry is not None else ()

    def kept_on(self, rows: tuple[int, ...]) -> list[str]:
        """Return the jobs that room on the rows is kept for, by id."""
        return sorted({job for row in rows for job in self._promised_on.get(row, ())})

    def leaving(self, job: str) -> bool:
        """Say whether the job is leaving already."""
        entry = self._entries.get(job)
        return entry is not None and entry.leaving

    def _mark(self, row: int) -> None:
        self.unshared[row] = None
        self.longest_grace_ns.pop(row, None)
        if self.table.overfull(row):
            self.overfull[row] = None
        else:
            self.overfull.pop(row, None)

    def _promise(self, job: Job, entry: Entry) -> None:
        rows = self.table.rows
        entry.promised = tuple(rows[name] for name in job.reserved_nodes if name in rows)
        for row in entry.promised:
            self.table.promise(row, entry.need)
            self._promised_on.setdefault(row, {})[job.id] = None
            self.unshared[row] = None
        if job.reserved_nodes:
            self.reserving[job.id] = None
