"""A cluster under policy 2 that checks each pass: who is asked to leave and for whom, and where who is placed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from copy import copy

import msgspec
import numpy as np
from tidegate_events import events as e
from tidegate_events.journal.base import Recorded
from tidegate_events.resources import Resources
from tidegate_events.spec import phase_need
from tidegate_scheduler.counting import DEFRAGMENTATION
from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.moves import stays_until_ns
from tidegate_scheduler.policy.elastic import work
from tidegate_scheduler.policy.elastic.devices import Devices
from tidegate_scheduler.policy.elastic.held import Held
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.peaks import NONE as NO_PEAK
from tidegate_scheduler.policy.elastic.peaks import Peak
from tidegate_scheduler.policy.elastic.queue import NONE, Share, aged
from tidegate_scheduler.policy.elastic.sites import Domain
from tidegate_scheduler.policy.elastic.table import NodeTable
from tidegate_scheduler.policy.elastic.trial import Trial
from tidegate_scheduler.policy.parameters import Parameters, as_parameters
from tidegate_scheduler.state import MOVED_WITHIN_NS, Job, Member, Node, State

from tests.scheduler.elastic.lab import looked_up, of
from tests.support.afresh import decide_afresh
from tests.support.cluster import SECOND, Cluster

CHANGES_AT_ONCE_MAX = 5
"""How often the room of one job changes without any news from outside; a loop has no such bound."""


class CheckedCluster(Cluster):
    """`raced` while the frame that is appended was decided on an older state than the one it meets."""

    def __init__(self, parameters: Parameters | None = None) -> None:
        self.raced = False
        super().__init__(parameters, policy=2)

    def append(self, service: str, instance: str, *events: e.AnyEvent, epoch: int | None = None) -> Recorded:
        """Append one frame, with its decisions judged by the state that they were taken on."""
        deposed = epoch is not None and epoch != self.epoch  # what it decided is void, whatever it is
        judged = service == "scheduler" and not self.raced and not deposed and isinstance(events[0], e.DecisionPass)
        if judged:
            self._judge_reclaims(events)
            for event in events:
                if isinstance(event, e.PreemptRequested) and event.for_job:
                    self._judge_eviction(event)
                elif isinstance(event, e.PreemptRequested) and event.reasons[0].code == "Rebalanced":
                    self._judge_move(event)
                elif isinstance(event, e.JobPlaced):
                    self._judge_placement(event)
        kept_before = {
            job.id: (job.attempt, job.reserved_nodes) for job in self.state.jobs.values() if job.reserved_nodes
        }
        recorded = super().append(service, instance, *events, epoch=epoch)
        said = {event.job for event in events if isinstance(event, e.RoomReserved)}
        for job, (attempt, _) in kept_before.items():
            known = self.state.jobs.get(job)
            used = known is None or known.attempt > attempt or known.reserved_nodes
            assert used or job in said, f"what was kept for {job} is gone, and nobody said so"
        if judged:
            for event in events:
                if isinstance(event, e.PreemptRequested) and event.for_job:
                    winner = self.job(event.for_job)
                    there = set(winner.reserved_nodes)
                    if event.reasons[0].code == "LeaseNotReturned":
                        there |= {each.node for each in winner.members if each.active}
                        # It is overdue by what was kept so far; who comes first by then may take that in the same pass.
                        there |= set(kept_before.get(event.for_job, (0, ()))[1])
                    assert there & {member.node for member in self.members(event.job)}, f"for nothing: {event}"
        return recorded

    def settle(self) -> list[e.AnyEvent]:
        """Settle, and hold that room is kept then for who can come, and that nobody keeps what was recalled."""
        decided = super().settle()
        assert_few_changes(decided)
        for job in self.state.jobs.values():
            late = [each.rank for each in job.members if each.active and 0 < each.hand_back_ns <= self.now]
            assert not late or job.stage not in ("placed", "running"), f"{job.id} kept what was recalled: {late}"
        for job in self.state.jobs.values():
            if job.reserved_nodes:
                queue = self.state.queues.get(job.tenant)
                assert job.waiting, f"{job.id} is {job.stage} and has room kept"
                assert not job.held, f"{job.id} is held and has room kept"
                assert queue is None or not queue.stopped, f"the queue of {job.id} is stopped, and it has room kept"
                shut = [name for name in job.reserved_nodes if not _open(self.state.nodes[name])]
                assert not shut, f"room for {job.id} is kept on nodes that are closed: {shut}"
        return decided

    def _judge_eviction(self, event: e.PreemptRequested) -> None:
        victim, winner = self.job(event.job), self.job(event.for_job)
        parameters = as_parameters(self.state.header.parameters)
        assert victim.id != winner.id
        if event.reasons[0].code == "Backfilled":
            assert winner.id in victim.backfills, f"it was let in by nobody: {event}"
            assert 0 < winner.reserved_start_ns <= event.deadline_ns, f"before its time: {event}"
            return
        if event.reasons[0].code == "LeaseNotReturned":
            self._judge_recall(event, victim, winner)
            return
        assert not self._close_to_its_end(victim, event.at_ns, parameters), f"protected: {event}"
        assert victim.preemptions - victim.slices < parameters.preemptions_max, f"beyond its budget: {event}"
        since = victim.started_ns or victim.placed_ns
        rested = event.at_ns >= since + parameters.preemption_cooldown_seconds * SECOND
        assert not victim.preemptions or rested, f"it began only now: {event}"
        if event.reasons[0].code == "MoreWorkLeft":
            self._judge_slice(event, victim, winner)
            return
        if event.reasons[0].code == DEFRAGMENTATION:
            self._judge_defragmentation(event, victim, winner)
            return
        queue = self.state.queues.get(winner.tenant)
        reclaims = winner.tenant != victim.tenant and queue is not None and queue.guaranteed is not None
        assert victim.priority < winner.priority or reclaims, f"by what right: {event}"

    def _judge_reclaims(self, events: Iterable[e.AnyEvent]) -> None:
        """Whoever leaves for what another tenant was guaranteed only borrows it, and that tenant has no more by it."""
        placed, gone, events = dict[str, tuple[int, ...]](), set[str](), list(events)
        for event in of(events, e.JobPlaced):  # told after the others of a pass, whenever in it that was decided
            placed[event.tenant] = _sum([placed.get(event.tenant, NONE), self._whole(self.job(event.job))])
        for event in events:
            if isinstance(event, e.PreemptRequested):
                gone.add(event.job)
                if event.for_job and event.reasons[0].code == "QuotaReclaimed":
                    victim, winner = self.job(event.job), self.job(event.for_job)
                    stays = _sum([self._held_by(victim.tenant, without=gone), placed.get(victim.tenant, NONE)])
                    own = self._guaranteed(victim.tenant)
                    assert all(map(int.__ge__, stays, own)), f"{victim.tenant} keeps {stays} of {own}: {event}"
                    has = _sum([self._held_by(winner.tenant, without=set(), leaving=True), self._whole(winner)])
                    most = self._guaranteed(winner.tenant)
                    within = all(not bound or held <= bound for held, bound in zip(has, most, strict=True))
                    assert within, f"{winner.tenant} would have {has} of {most}: {event}"

    def _whole(self, job: Job) -> tuple[int, ...]:
        """Return what all members of a job need."""
        size = self.state.specs[job.id].gang_size
        return tuple(each * size for each in _amounts(self.state.floors[job.id]))

    def _held_by(self, tenant: str, *, without: set[str], leaving: bool = False) -> tuple[int, ...]:
        """Return what a tenant holds, also what is leased to it; of those who are `leaving` where that is said."""
        found = [NONE]
        for job in self.state.jobs.values():
            stays = job.stage in ("placed", "running") or (leaving and job.stage in ("preempting", "stopping"))
            if job.tenant == tenant and stays and job.id not in without:
                floor = self.state.floors[job.id]
                for member in job.members:
                    if member.active:
                        found.append(_amounts(floor if member.extra is None else floor.plus(member.extra)))
        return _sum(found)

    def _guaranteed(self, tenant: str) -> tuple[int, ...]:
        queue = self.state.queues.get(tenant)
        return _amounts(queue.guaranteed) if queue is not None and queue.guaranteed is not None else NONE

    def _judge_defragmentation(self, event: e.PreemptRequested, victim: Job, winner: Job) -> None:
        """It is of no higher priority, has saved, and there is room for it elsewhere; so many move within an hour."""
        parameters, header = as_parameters(self.state.header.parameters), self.state.header
        assert victim.priority <= winner.priority, f"by what right: {event}"
        assert victim.stage == "running", f"it does not run: {event}"
        assert victim.newest_checkpoint is not None, f"it has saved nothing: {event}"
        kept_off = victim.held or victim.suspend_requested or victim.requeue_requested
        assert not kept_off, f"an operator keeps it off: {event}"
        recent = [at_ns for at_ns in header.moved_ns if at_ns > event.at_ns - MOVED_WITHIN_NS]
        assert len(recent) < parameters.defragmentations_per_hour, f"beyond the budget of moves: {event}"
        need, members = _amounts(self.state.floors[victim.id]), self.state.specs[victim.id].gang_size
        free = [self.nobody_holds(name) for name, node in self.state.nodes.items() if _open(node)]
        holds = [min(have // one for have, one in zip(each, need, strict=True) if one) for each in free]
        assert sum(max(0, each) for each in holds) >= members, f"nowhere would it resume: {event}"

    def _judge_slice(self, event: e.PreemptRequested, victim: Job, winner: Job) -> None:
        """It has so much more work left, of the class that it was placed in; its tenant keeps what is its own."""
        parameters = as_parameters(self.state.header.parameters)
        since_ns = max(victim.submitted_ns, victim.suspended_ns)
        stands = aged(victim.priority, since_ns, victim.placed_ns, parameters.ageing_seconds * SECOND)
        assert parameters.slice_steps, f"nobody wants that: {event}"
        assert stands == winner.priority, f"of another class: {event}"
        assert victim.slices < parameters.preemptions_max, f"too often: {event}"
        assert event.at_ns >= victim.started_ns + parameters.preemption_cooldown_seconds * SECOND, f"too soon: {event}"
        steps = {
            "steps": self._steps_left(victim, event.at_ns - victim.started_ns),
            "for_steps": self._steps_left(winner, 0),
        }
        assert event.reasons[0].numbers == steps
        assert steps["steps"] >= steps["for_steps"] + parameters.slice_steps, f"too little more: {event}"
        if victim.tenant != winner.tenant:
            assert not looked_up(self).share(victim.tenant).owed(), f"its tenant has less than its own: {event}"

    def _steps_left(self, job: Job, runs_ns: int) -> int:
        ran_ns = job.ran_ns + max(0, runs_ns)
        return work.steps_left(job, self.state.specs[job.id], self.state.floors[job.id], ran_ns)

    def _judge_move(self, event: e.PreemptRequested) -> None:
        """It waits for long, has saved, and elsewhere there is what it is guaranteed and waits for."""
        job, parameters = self.job(event.job), as_parameters(self.state.header.parameters)
        spec, (member,) = self.state.specs[job.id], job.members
        assert spec.borrows
        assert job.newest_checkpoint is not None
        has = (job.held, member.leased, member.extra, member.hand_back_ns)
        assert has == (False, None, None, 0), f"it has something: {event}"
        assert member.wanted != member.granted, f"it waits for nothing: {event}"
        assert event.at_ns - member.wanted_ns >= parameters.rebalance_after_seconds * SECOND > 0, f"too soon: {event}"
        assert event.at_ns >= stays_until_ns(job), f"it came only now: {event}"
        assert not self._close_to_its_end(job, event.at_ns, parameters), f"protected: {event}"
        needs = [_amounts(each) for each in (self.state.floors[job.id], phase_need(spec, member.wanted))]
        most = [max(each) for each in zip(*needs, strict=True)]
        able = [
            name
            for name, node in self.state.nodes.items()
            if name != member.node and _open(node)
            if all(free >= need for free, need in zip(self.nobody_holds(name), most, strict=True))
        ]
        assert able, f"nowhere would it have {most}: {event}"

    def nobody_holds(self, name: str) -> list[int]:
        """Return what of a node is neither guaranteed nor granted to those who are there."""
        node, held = self.state.nodes[name], [0, 0, 0]
        for owner, member in [(each, member) for each in self.state.jobs.values() for member in each.members]:
            if member.active and member.node == name:
                for part in (self.state.floors[owner.id], member.extra or Resources()):
                    held = [have + more for have, more in zip(held, _amounts(part), strict=True)]
        return [have - used for have, used in zip(_amounts(node.capacity), held, strict=True)]

    def _judge_recall(self, event: e.PreemptRequested, victim: Job, winner: Job) -> None:
        """What is leased is nobody's to keep, however close to its end; but there is somebody who waits for it."""
        late = [each for each in victim.members if each.active and 0 < each.hand_back_ns <= event.at_ns]
        assert late, f"not overdue: {event}"
        claims = any(each.active and self._waits_for_its_own(winner, each) for each in winner.members)
        assert (winner.waiting and winner.reserved_nodes and not winner.held) or claims, f"for nobody: {event}"

    def _waits_for_its_own(self, job: Job, member: Member) -> bool:
        spec, floor = self.state.specs[job.id], self.state.floors[job.id]
        phase = member.wanted or member.phase
        need = phase_need(spec, phase)
        return member.granted != phase and need.memory_mib <= floor.memory_mib and self._within(need, floor)

    def _within(self, need: Resources, floor: Resources) -> bool:
        return need.gpus <= floor.gpus and need.gpu_millis <= floor.gpu_millis

    def _close_to_its_end(self, job: Job, now_ns: int, parameters: Parameters) -> bool:
        expected = self.state.specs[job.id].expected_seconds
        if expected is None:
            return False
        ran = job.ran_ns + (now_ns - job.started_ns if job.started_ns else 0)
        least, most = parameters.protection_permille, 1000 + parameters.overrun_permille
        return expected * SECOND * least <= ran * 1000 <= expected * SECOND * most

    def _judge_placement(self, event: e.JobPlaced) -> None:
        spec, names = self.state.specs[event.job], {member.node for member in event.members}
        assert not self.job(event.job).held, f"held: {event}"
        assert all(_open(self.state.nodes[name]) for name in names), f"on a closed node: {event}"
        for window in self.state.maintenance.values():
            assert not (window.start_ns <= event.at_ns < window.end_ns and names & set(window.nodes)), f"{event}"
        if spec.communication == "intensive" and len(names) > 1:
            nodes = [self.state.nodes[name] for name in names]
            switches = {(node.rack, node.switch) for node in nodes}
            racks = {node.rack or (node.switch and f"below {node.switch}") for node in nodes}
            widest = racks if spec.widest_domain == "rack" else switches
            assert len(widest) == 1, f"too wide: {event}"
            assert not widest & {"", ("", "")}, f"too wide: {event}"
            assert spec.widest_domain == "rack" or all(node.switch for node in nodes), f"too wide: {event}"
        if spec.determinism == "strict":
            models = {self.state.nodes[name].cpu_model for name in names}
            assert len(models) == 1, f"over several CPU models: {event}"
            assert len(names) == 1 or "" not in models, f"over nodes that may differ: {event}"
            assert self.job(event.job).cpu_model in ("", *models), f"not on the model that it began on: {event}"
        need = self.state.floors[event.job]
        for member in event.members:
            devices = {gpu.index: gpu for gpu in self.state.nodes[member.node].gpus}
            for index in member.gpu_indices:
                assert devices[index].memory_mib >= need.gpu_memory_mib, f"too small a device: {event}"
                assert not spec.gpu_models or devices[index].model in spec.gpu_models, f"another model: {event}"


def assert_few_changes(decided: Iterable[e.AnyEvent]) -> None:
    """Hold that what passes decided with nothing new from outside changes nobody's room again and again."""
    changes = Counter(event.job for event in decided if isinstance(event, e.RoomReserved))
    often = {job: number for job, number in sorted(changes.items()) if number > CHANGES_AT_ONCE_MAX}
    assert not often, f"room changes without any news: {often}"


def _amounts(need: Resources) -> tuple[int, int, int]:
    return (need.cpu_millis, need.memory_mib, need.gpus * 1000 + need.gpu_millis)


def _sum(amounts: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*amounts, strict=True)))


def _open(node: Node) -> bool:
    return node.status == "up" and not (node.zombies or node.cordoned or node.drain_deadline_ns)


def told_anew(frames: list[Recorded], *, turned: bool = False) -> State:
    """Return a state made by folding the frames; `turned`: with its tables in another order."""
    state = State()
    for recorded in frames:
        evolve(state, recorded)
    if turned:
        for name in ("jobs", "nodes", "queues", "maintenance"):
            table = getattr(state, name)
            setattr(state, name, dict(reversed(table.items())))
    return state


def answers(state: State, now_ns: int) -> tuple[bytes, int | None, dict[str, e.Reason]]:
    """Return all that a pass says."""
    found = decide_afresh(state, now_ns)
    wire = b"".join(msgspec.json.encode(event) for event in found.events)
    return wire, found.wake_at_ns, {job: found.waiting[job] for job in sorted(found.waiting)}


def assert_balanced(cluster: Cluster) -> None:
    """Hold that nothing is counted any more where nobody is."""
    assert not cluster.state.jobs
    index = looked_up(cluster)
    assert all(share.used == NONE for share in index.shares.values()), index.shares
    assert (index.lines, index.held, index.reserving, index.on_row) == ({}, {}, {}, {row: {} for row in index.on_row})
    assert not index.backfilling
    assert not peaks_of(index)
    for name, row in index.table.rows.items():
        capacity = cluster.state.nodes[name].capacity
        whole = [capacity.cpu_millis, capacity.memory_mib, len(cluster.state.nodes[name].gpus)]
        assert index.table.free[:3, row].tolist() == whole, name
        assert index.table.later[:3, row].tolist() == whole, name


def peaks_of(index: Index) -> dict[str, Peak]:
    """Return what borrowers may ask for yet, by node."""
    table = index.table
    return {name: found for name, row in sorted(table.rows.items()) if (found := table.peaks.on(row)) != NO_PEAK}


def tables(index: Index) -> dict[str, object]:
    """Return all that an index knows of its state, by names and not by rows, which tell the order of learning."""
    table = index.table
    rows = {name: table.rows[name] for name in sorted(table.rows)}
    amounts = {"free": table.free, "later": table.later, "now": table.now}
    lines = {
        key: [(waiter.job, waiter.submitted_seq, waiter.since_ns) for waiter in line.waiters]
        for key, line in index.lines.items()
    }
    return {
        **{what: {name: values[:, row].tolist() for name, row in rows.items()} for what, values in amounts.items()},
        "open": {name: bool(table.open[row]) for name, row in rows.items()},
        "kinds": {name: table.kinds[row] for name, row in rows.items()},
        "sites": {name: _site(table, row) for name, row in rows.items()},
        "places": [name for name, row in sorted(rows.items(), key=lambda item: int(table.place[item[1]]))],
        "devices": {name: _devices(table.devices[row]) for name, row in rows.items()},
        "mixed": sorted(table.names[row] for row in table.mixed),
        "held": {priority: _held(index, held) for priority, held in sorted(index.held.items())},
        "shares": {tenant: copy(share) for tenant, share in sorted(index.shares.items()) if share != Share()},
        "lines": lines,
        "asking": {name: sorted(index.asking.on_row[row]) for name, row in rows.items() if row in index.asking.on_row},
        "recalled": sorted(index.asking.recalled),
        "waiting": sorted(index.asking.waiting),
        "peaks": peaks_of(index),
        "on": {name: sorted(index.on_row[row]) for name, row in rows.items() if index.on_row.get(row)},
        "left": {name: index.left[row] for name, row in rows.items() if index.left.get(row)},
        "total": index.total,
        "reserving": sorted(index.reserving),
        "backfilling": sorted(index.backfilling),
        "overfull": sorted(table.names[row] for row in index.overfull),
        "unreachable": sorted(index.fleet.unreachable),
        "clearing": sorted(index.fleet.clearing),
        "aside": sorted(index.aside),
        "up": sorted(index.fleet.up),
        "cordoned": sorted(index.fleet.cordoned),
        "holders": holders_of(index),
    }


def _site(table: NodeTable, row: int) -> list[str]:
    """Return the switch and the rack of a row."""
    levels: tuple[Domain, ...] = ("switch", "rack")
    return [table.sites.names(level)[table.sites.numbers(level)[row]] for level in levels]


def _devices(devices: Devices) -> tuple[object, ...]:
    free = [gpu.index for gpu in devices.free]
    used, staying = sorted(devices.used_millis.items()), sorted(devices.staying_millis.items())
    leased = (sorted(devices.leased.items()), sorted(devices.lent.items()), sorted(devices.claimed.items()))
    return (sorted(devices.all), free, used, staying, leased, devices.promised, devices.missing)


def _held(index: Index, held: Held) -> tuple[int, dict[str, list[int]]]:
    """Return what jobs of one priority hold, where they hold something."""
    room = np.zeros((4, len(index.table)), np.int64)
    held.add_to(room)
    by_name = {name: room[:3, row].tolist() for name, row in index.table.rows.items() if room[:, row].any()}
    return held.members, dict(sorted(by_name.items()))


def holders_of(index: Index) -> dict[str, list[list[int]]]:
    """Return by node what comes free as those who hold room there end, in the order of their ends."""
    found: dict[str, list[list[int]]] = {}
    trial = Trial(index)
    index.holders.refresh(trial, {})
    holders, steps = index.holders, index.holders.steps
    for name, row in sorted(index.table.rows.items()):
        there = np.flatnonzero(steps.rows == row).tolist()
        found[name] = [[int(steps.ends_ns[at]), *steps.gained[:, at].tolist(), int(steps.shares[at])] for at in there]
        found[name].append([*holders.still[:, row].tolist(), int(holders.shares[row])])
    return found
