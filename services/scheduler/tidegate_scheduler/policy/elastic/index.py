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
from tidegate_scheduler.policy.elastic.holders import Holders
from tidegate_scheduler.policy.elastic.judgements import Judgements
from tidegate_scheduler.policy.elastic.peaks import NONE as NO_PEAK
from tidegate_scheduler.policy.elastic.peaks import beyond
from tidegate_scheduler.policy.elastic.queue import Amounts, Line, LineKey, Share, Waiter, plus
from tidegate_scheduler.policy.elastic.settling import Settling
from tidegate_scheduler.policy.elastic.shapes import Fit, Shape
from tidegate_scheduler.policy.elastic.standing import Standing
from tidegate_scheduler.policy.elastic.table import Kept, NodeTable
from tidegate_scheduler.policy.sharing import Seated, is_fixed
from tidegate_scheduler.state import LEAVING_STAGES, Job, Node, State

if TYPE_CHECKING:
    from tidegate_scheduler.policy.elastic.plain import Sharer

SharedRow = tuple[int, list[Seated], dict[tuple[str, int], tuple[Quota, ...]]]
"""The CPU of a row, among whom it was shared, and their quotas."""


Shown = tuple[str, tuple[Quota, ...]]
"""The phase of a member and its quotas: what the sharing of its row depends on."""


class Index:
    """Tables over one state. `refresh` brings them up to date; a pass may try things on `table` and takes them back."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.table = NodeTable()
        self._accounts = Accounts()
        self.share = self._accounts.share
        self._standing = Standing(state, self.table)
        self.settling = Settling(state)
        self.unsettled_nodes: dict[str, None] = {}
        self.judged_by: tuple[int, int] | None = None
        """The parameters by which the nodes that are settled were judged."""

        self.fleet = Fleet()
        self.held: dict[int, Held] = {}
        self.holders = Holders(self)
        self.left: dict[int, int] = {}
        """How many members are leaving each row."""

        self.unshared: dict[int, None] = {}
        self.shared: dict[int, SharedRow] = {}
        """How the last pass shared the rows on which it placed somebody."""

        self.scaled: dict[int, dict[str, None]] = {}
        """By row the jobs that have more simulators there than they are guaranteed, or had."""

        self.asking = Asking(state)
        self.overfull: dict[int, None] = {}
        self._unweighed: dict[int, None] = {}
        """The rows of which it is to be said anew whether they are, once all that changed is taken in."""

        self.reserving: dict[str, None] = {}
        self.backfilling: dict[str, None] = {}
        """The jobs that were let into room that is kept for others."""

        self.on_row: dict[int, dict[str, None]] = {}
        self.sharers: dict[str, tuple[Sharer, ...] | None] = {}
        """By job what `plain` knows of its members, until the job changes."""

        self.judgements = Judgements(state)
        self.longest_grace_ns: dict[int, int | None] = {}
        """By row what `leave` knows of who is there, until one of them changes."""

        self._elastic: dict[str, bool] = {}
        self._elastic_on: dict[int, int] = {}
        self._promised_on: dict[int, dict[str, None]] = {}
        self._entries: dict[str, Entry] = {}
        self._expected: dict[str, list[Shown]] = {}
        """The members of jobs that a pass placed, until it is known whether they were."""

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
        jobs, nodes = self._changed()
        if jobs or nodes:
            self.table.changes.begin_round()
        moved = self._on_nodes(nodes)
        for name in moved:
            self._take_out(name)
        for name in nodes:
            self._put_or_drop(name)
        if self._ranked != self.table.renamed:
            self.table.rank_names()
            self._ranked = self.table.renamed
        jobs |= moved
        for name in jobs:
            self.settling.changed(name)
            self.sharers.pop(name, None)
            self.judgements.forget(name)
        jobs |= dict.fromkeys(self._expected)
        self._renew(jobs)
        self.holders.note(jobs)
        self._weigh()
        self._standing.refresh(now_ns)
        self.settling.wake(now_ns)

    def _changed(self) -> tuple[dict[str, None], list[str]]:
        """Return the jobs and the nodes that changed since this was asked last, and take in the queues that did."""
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
        return jobs, nodes

    def _on_nodes(self, nodes: list[str]) -> dict[str, None]:
        """Return the jobs that have entered anything on the nodes."""
        found: dict[str, None] = {}
        for name in nodes:
            row = self.table.rows.get(name)
            if row is not None:
                found |= self.on_row.get(row, {}) | self._promised_on.get(row, {})
        return found

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
        self.unshared[row] = self._unweighed[row] = None
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

    # ---- jobs ----

    def expect(self, job: Job, seats: tuple[Seat, ...], members: list[Shown], *, backfills: bool) -> None:
        """Enter a job as placed on seats that are occupied for it already, with such members: so it was decided.

        What is folded then changes nothing here, as a rule; if it was not, `refresh` finds that the job still waits.
        """
        waiting = self._entries[job.id]
        self._standing.leave(job.id)
        self._take_out(job.id)
        entry = Entry(waiting.tenant, waiting.priority, waiting.need, waiting.elastic, seats, backfills=backfills)
        self._put_in(job.id, entry, is_held=True)
        self._expected[job.id] = members

    def _renew(self, names: dict[str, None]) -> None:
        """Enter what became of jobs; of most there is nothing new in the tables, though they changed."""
        renewed = [(name, self._entry_of(name)) for name in names]
        differ = [each for each in renewed if each[1] != self._entries.get(each[0])]
        for name in names:
            if name not in self._expected:
                self._standing.leave(name)
                self.asking.leave(name, self.table)
        for name, _ in differ:
            self._take_out(name)
        for name, entry in differ:
            if entry is not None:
                self._put_in(name, entry)
        for name, entry in renewed:
            if entry is not None:
                self._look_again(self.state.jobs[name], entry, self._expected.get(name))
            else:
                self._elastic.pop(name, None)
        self._expected.clear()

    def kept_for(self, name: str) -> Kept:
        """Return what is kept for each member of a job for which room is."""
        spec, floor = self.state.specs[name], self.state.floors[name]
        return Kept(floor, spec.gpu_models, beyond(spec, floor, None) if spec.borrows else NO_PEAK)

    def _entry_of(self, name: str) -> Entry | None:
        """Return what a job enters into the tables, None where it is gone."""
        job = self.state.jobs.get(name)
        if job is None:
            return None
        rows, floor, is_elastic = self.table.rows, self.state.floors[name], self._is_elastic(name)
        if job.waiting:
            promised = tuple([rows[node] for node in job.reserved_nodes if node in rows])
            reserves, kept = bool(job.reserved_nodes), self.kept_for(name) if promised else None
            return Entry(job.tenant, job.priority, floor, is_elastic, promised=promised, reserves=reserves, kept=kept)
        seats: list[Seat] = []
        scaled: list[int] = []
        for member in job.members:
            row = rows.get(member.node)
            if row is not None and member.active:
                seats.append(seat_of(row, member))
                if is_elastic and (member.returns_mib or has_more(member)) and row not in scaled:
                    scaled.append(row)
        return Entry(
            job.tenant,
            job.priority,
            floor,
            is_elastic,
            tuple(seats),
            job.stage in LEAVING_STAGES,
            tuple(scaled),
            bool(job.backfills),
        )

    def _put_in(self, name: str, entry: Entry, *, is_held: bool = False) -> None:
        """Enter a job into the tables; its room `is_held` where a pass has occupied it already."""
        self._entries[name], on_row = entry, self.on_row
        self.holders.changed[name] = None
        for seat in entry.seats:
            if not is_held:
                self.table.occupy(seat.row, seat.holds(entry.need), seat.gpu_indices, leaving=entry.leaving)
            if seat.row not in on_row:
                on_row[seat.row] = {}
            on_row[seat.row][name] = None
        for row in entry.scaled:
            self.scaled.setdefault(row, {})[name] = None
        if entry.seats:
            self._use(entry, 1, is_held=is_held)
        for row in entry.promised:
            assert entry.kept is not None, "room is promised"
            self.table.promise(row, entry.kept)
            self._promised_on.setdefault(row, {})[name] = None
        if entry.reserves:
            self.reserving[name] = None
        if entry.backfills:
            self.backfilling[name] = None

    def _take_out(self, name: str) -> None:
        """Take back what `_put_in` did."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return
        for seat in entry.seats:
            self.table.vacate(seat.row, seat.holds(entry.need), seat.gpu_indices, leaving=entry.leaving)
            self.on_row[seat.row].pop(name, None)
        for row in entry.scaled:
            self.scaled[row].pop(name, None)
            if not self.scaled[row]:
                del self.scaled[row]
        if entry.seats:
            self._use(entry, -1)
        for row in entry.promised:
            assert entry.kept is not None, "room was promised"
            self.table.release(row, entry.kept)
            self._promised_on[row].pop(name, None)
        if entry.reserves:
            del self.reserving[name]
        if entry.backfills:
            del self.backfilling[name]
        self._mark(entry)

    def _look_again(self, job: Job, entry: Entry, expected: list[Shown] | None) -> None:
        """Let a job stand in line, or ask for its phases, as it is now; have its rows shared anew, unless they are."""
        if job.waiting:
            self._standing.enter(job)
        elif entry.elastic and self.state.specs[job.id].phase_entry == "asked":
            self.asking.enter(job, entry.seats, self.table)  # where such a job came, rows are shared anew anyway
        as_expected = expected is not None and expected == [(each.phase, each.quotas) for each in job.members]
        self._mark(entry, is_shared=as_expected and not (job.slow or job.raised_steps))

    def _is_elastic(self, job: str) -> bool:
        if job not in self._elastic:
            self._elastic[job] = not is_fixed(self.state.specs[job])
        return self._elastic[job]

    def _use(self, entry: Entry, sign: int, *, is_held: bool = False) -> None:
        """Count what the job holds for its tenant, unless it was, and that somebody of its priority holds something."""
        if not is_held:
            share, whole = self.share(entry.tenant), held_by(entry.need, entry.seats)
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
        for seat in entry.seats:
            held.count(seat.holds(entry.need), seat.row, sign)
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

    def _mark(self, entry: Entry, *, is_shared: bool = False) -> None:
        """Have the rows looked at on which a job that changed has anything; they may be shared with it already."""
        for row in entry.promised:
            self.unshared[row] = None
        for seat in entry.seats:
            row = seat.row
            if not is_shared:
                self.unshared[row] = None
            self.longest_grace_ns.pop(row, None)
            self.judgements.forget_row(row)
            self._unweighed[row] = None

    def _weigh(self) -> None:
        """Find out which rows hold more than there is."""
        for row in self._unweighed:
            self.overfull.pop(row, None)
            if self.table.overfull(row):
                self.overfull[row] = None
        self._unweighed.clear()
