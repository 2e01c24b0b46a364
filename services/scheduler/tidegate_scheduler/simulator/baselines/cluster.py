"""What the baselines see of the state: rooms, who waits in which order, who runs; kept up with it by what changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace

import msgspec
from sortedcontainers import SortedList
from tidegate_events.resources import Resources
from tidegate_events.spec import JobSpec

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.elastic.queue import NONE, Amounts, amounts, plus
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.policy.settle import settle_job, settle_node
from tidegate_scheduler.simulator.baselines.domains import Bound, Wanted, bound_of
from tidegate_scheduler.simulator.baselines.room import Room
from tidegate_scheduler.state import LEAVING_STAGES, Job, Node, State

Rank = Callable[[State, Job, int], tuple[int, ...]]
"""Where a job stands at a time: smaller is asked first. It does not change while the job waits."""


Alike = tuple[Resources, int, tuple[str, ...], str, str, Bound]
"""What of a job decides where it fits."""

Standing = tuple[tuple[int, ...], int, str]
"""The rank of a job, its number in the order of submissions, and its name."""


class Seat(msgspec.Struct, frozen=True):
    """A member's place: its node and the devices that it has there."""

    node: str
    gpu_indices: tuple[int, ...]


class Cluster:
    """The nodes that are open, by name, and the jobs. A pass may change rooms and takes that back."""

    def __init__(self, state: State, rank: Rank) -> None:
        self.state = state
        self.rank = rank
        self.now: dict[str, Room] = {}
        """What nobody holds."""

        self.later: dict[str, Room] = {}
        """What nobody holds when all who are leaving have left."""

        self.empty: dict[str, Room] = {}
        """All nodes that are known, as if nothing ran there."""

        self.open: list[str] = []
        self.running: dict[str, tuple[Seat, ...]] = {}
        """Who holds room, and is not leaving."""

        self.told_to_leave: dict[str, None] = {}
        """Who of them was suspended or requeued by an operator."""

        self.drained: dict[str, None] = {}
        self.rejoined: dict[str, None] = {}
        """Nodes that may have less than what is held there, as they came back smaller."""

        self._used: dict[str, Amounts] = {}
        self._tenants: dict[str, str] = {}

        self.lines: dict[Alike, SortedList[Standing]] = {}
        """Who waits, each in the line of those that are alike to every node."""

        self.fit_nowhere: set[Alike] = set()
        """Kinds of which none fitted, since when nothing has come free."""

        self.hopeless: dict[Alike, int] = {}
        """Kinds that all nodes together could not hold, were they empty, since when: nobody waits behind those."""

        self.possible: set[Alike] = set()
        """Kinds that they could."""

        self.nodes_changed = True

        self._places: dict[str, tuple[Alike, Standing]] = {}
        self._held: dict[str, tuple[Resources, tuple[Seat, ...], bool]] = {}
        self._on_node: dict[str, dict[str, None]] = {}
        self._unsettled: dict[str, None] = {}
        self._due: list[tuple[int, str]] = []
        self._unreachable: dict[str, None] = {}
        self._changed: dict[str, None] = {f"node/{name}": None for name in state.nodes}
        self._changed |= {f"job/{name}": None for name in state.jobs}
        state.watch(self._changed)

    def refresh(self, draft: Draft) -> None:
        """Take in what changed since the last pass, and settle what was seen of running jobs."""
        changed = list(self._changed)
        self._changed.clear()
        for key in changed:
            kind, _, name = key.partition("/")
            if kind == "node":
                self._put_node(name)
            elif kind == "job":
                before = self._held.get(name)
                self._leave(name)
                self._enter(name, draft.now_ns)
                if before is not None and before[:2] != self._held.get(name, ())[:2]:
                    self.fit_nowhere.clear()
                self._unsettled[name] = None
        self._settle(draft)

    def waiting(self, over: Collection[Alike] = ()) -> Iterator[tuple[Alike, Standing]]:
        """Yield who waits and is not hopeless, the first in order first; no more of kinds that are `over` by then.

        Many more wait than there are kinds, and where the first of a kind got nothing the others need not be asked.
        """
        heads = []
        for number, (kind, line) in enumerate(self.lines.items()):
            if kind in self.hopeless:
                continue
            later = iter(line)
            heads.append((next(later), number, kind, later))
        heapify(heads)
        while heads:
            place, number, kind, later = heads[0]
            if kind in over:
                heappop(heads)
                continue
            yield kind, place
            following = next(later, None)
            if following is None:
                heappop(heads)
            else:
                heapreplace(heads, (following, number, kind, later))

    def wanted(self, job: Job) -> Wanted:
        """Return what a job wants of nodes."""
        return Wanted(self.state.specs[job.id], self.state.floors[job.id], bound_of(self.state.specs[job.id], job))

    def used(self, tenant: str) -> Amounts:
        """Return what the jobs of a tenant hold."""
        return self._used.get(tenant, NONE)

    def stays_on(self, node: str) -> list[Job]:
        """Return who holds room on a node and is not leaving."""
        return [self.state.jobs[name] for name in self._on_node.get(node, ()) if name in self.running]

    def is_crowded(self, node: str) -> bool:
        """Say whether those who stay on a node hold more than it has."""
        there = {gpu.index for gpu in self.state.nodes[node].gpus}
        cpu_millis = memory_mib = 0
        for name in self._on_node.get(node, ()):
            need, seats, leaving = self._held[name]
            for seat in seats if not leaving else ():
                if seat.node == node:
                    cpu_millis += need.cpu_millis
                    memory_mib += need.memory_mib
                    if not there.issuperset(seat.gpu_indices):
                        return True
        capacity = self.state.nodes[node].capacity
        return cpu_millis > capacity.cpu_millis or memory_mib > capacity.memory_mib

    def leaves(self, name: str) -> None:
        """Take it that a job which runs was asked to leave in this pass."""
        need, seats, _ = self._held[name]
        self._occupy(need, seats, leaving=False, sign=-1)
        self._occupy(need, seats, leaving=True, sign=1)
        self._held[name] = (need, seats, True)
        self.running.pop(name, None)
        self.told_to_leave.pop(name, None)

    # ---- nodes ----

    def _put_node(self, name: str) -> None:
        self.fit_nowhere.clear()
        self.possible.clear()
        self.nodes_changed = True
        node, before = self.state.nodes.get(name), self.empty.get(name)
        if node is None:
            self.empty.pop(name, None)
        else:
            self.empty[name] = Room(node)
        _mark(self.drained, name, bool(node and node.drain_deadline_ns))
        if before is not None and node is not None and _has_less(self.empty[name], before):
            self.rejoined[name] = None
        if node is None or not _is_open(node):
            self.now.pop(name, None)
            self.later.pop(name, None)
        else:
            self.now[name], self.later[name] = self.empty[name].copy(), self.empty[name].copy()
            for job in self._on_node.get(name, {}):
                need, seats, leaving = self._held[job]
                self._occupy(need, [seat for seat in seats if seat.node == name], leaving=leaving, sign=1)
        self.open = sorted(self.now)
        _mark(self._unreachable, name, node is not None and node.status == "unreachable")

    # ---- jobs ----

    def _enter(self, name: str, now_ns: int) -> None:
        job = self.state.jobs.get(name)
        if job is None:
            return
        if job.waiting:
            if not (job.held or job.cancel_requested):
                kind, place = alike(self.state, name), (self.rank(self.state, job, now_ns), job.submitted_seq, name)
                self._places[name] = (kind, place)
                self.lines.setdefault(kind, SortedList()).add(place)
            return
        need, leaving = self.state.floors[name], job.stage in LEAVING_STAGES
        seats = tuple([Seat(member.node, member.gpu_indices) for member in job.members if member.active])
        self._held[name] = (need, seats, leaving)
        for seat in seats:
            self._on_node.setdefault(seat.node, {})[name] = None
        self._tenants[name] = job.tenant
        self._used[job.tenant] = plus(self.used(job.tenant), amounts(need, len(seats)))
        if job.stage in ("placed", "running"):
            self.running[name] = seats
            _mark(self.told_to_leave, name, job.suspend_requested or job.requeue_requested)
        self._occupy(need, seats, leaving=leaving, sign=1)

    def _leave(self, name: str) -> None:
        place = self._places.pop(name, None)
        if place is not None:
            line = self.lines[place[0]]
            line.remove(place[1])
            if not line:
                del self.lines[place[0]]
        held = self._held.pop(name, None)
        if held is not None:
            need, seats, leaving = held
            tenant = self._tenants.pop(name)
            self._used[tenant] = plus(self.used(tenant), amounts(need, len(seats)), -1)
            self.running.pop(name, None)
            self.told_to_leave.pop(name, None)
            for seat in seats:
                self._on_node[seat.node].pop(name, None)
            self._occupy(need, seats, leaving=leaving, sign=-1)

    def _occupy(self, need: Resources, seats: Iterable[Seat], *, leaving: bool, sign: int) -> None:
        for seat in seats:
            if seat.node in self.now:
                self.now[seat.node].occupy(need, seat.gpu_indices, sign)
                if not leaving:
                    self.later[seat.node].occupy(need, seat.gpu_indices, sign)

    # ---- what was seen ----

    def _settle(self, draft: Draft) -> None:
        """Settle those to whom something happened, and those for whom enough time has passed."""
        for name in sorted(self._unreachable):
            settle_node(draft, self.state.nodes[name])
        while self._due and self._due[0][0] <= draft.now_ns:
            self._unsettled[heappop(self._due)[1]] = None
        for name in list(self._unsettled):
            if draft.full:
                return
            job = self.state.jobs.get(name)
            earlier, draft.wake_at_ns, decided = draft.wake_at_ns, None, len(draft.events)
            if job is not None:
                settle_job(draft, job)
            due_ns, draft.wake_at_ns = draft.wake_at_ns, earlier
            if len(draft.events) == decided:
                del self._unsettled[name]
                if due_ns is not None:
                    heappush(self._due, (due_ns, name))
        if self._due:
            draft.wake_by(self._due[0][0])


def alike(state: State, job: str) -> Alike:
    """Return what of the job decides where it fits."""
    spec = state.specs[job]
    bound = bound_of(spec, state.jobs[job])
    return (state.floors[job], spec.gang_size, spec.gpu_models, spec.image, spec.isolation, bound)


def gpus_of(need: Resources, spec: JobSpec) -> int:
    """Return the GPUs of all members in thousandths; a job without any counts as one of one thousandth a member."""
    return max(1, need.gpus * 1000 + need.gpu_millis) * spec.gang_size


def ran_seconds(job: Job, now_ns: int) -> int:
    """Return how long a job ran until now, in all its attempts."""
    running_ns = max(0, now_ns - job.started_ns) if job.started_ns else 0
    return (job.ran_ns + running_ns) // SECOND_NS


def _has_less(now: Room, before: Room) -> bool:
    less = now.cpu_millis < before.cpu_millis or now.memory_mib < before.memory_mib
    return less or not set(before.devices) <= set(now.devices)


def _mark(names: dict[str, None], name: str, is_so: bool) -> None:
    if is_so:
        names[name] = None
    else:
        names.pop(name, None)


def _is_open(node: Node) -> bool:
    return node.status == "up" and not node.zombies and not node.cordoned and not node.drain_deadline_ns
