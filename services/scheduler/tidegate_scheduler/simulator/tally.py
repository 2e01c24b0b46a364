"""Counts what happens in a simulation as it happens: of jobs, of members on nodes, and of the cluster."""

from __future__ import annotations

import msgspec
from tidegate_events.events import Reason
from tidegate_events.resources import Resources
from tidegate_events.spec import JobSpec, member_floor, phase_need

from tidegate_scheduler.leasing import asks
from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS
from tidegate_scheduler.policy.sharing import quota_millis
from tidegate_scheduler.simulator.admission import device_millis
from tidegate_scheduler.simulator.errors import SimulationError
from tidegate_scheduler.simulator.run import JobRun, PhaseTime, Sample, Stay
from tidegate_scheduler.simulator.work import MILLI_NS
from tidegate_scheduler.simulator.workload import Arrival
from tidegate_scheduler.state import Member


class Record(msgspec.Struct, kw_only=True):
    """What is counted of one job; `peak` is the most that a member needs, of each resource, in any phase.

    Since when it waits or works is None where it does not.
    """

    arrival: Arrival
    peak: Resources
    submitted_ns: int
    first_placed_ns: int | None = None
    ended_ns: int | None = None
    outcome: str = ""
    reasons: tuple[Reason, ...] = ()
    preemptions: int = 0
    lost_ns: int = 0
    lost_gpu_millis_ns: int = 0
    waited_ns: int = 0
    waits_since_ns: int | None = None
    placed: bool = False
    works_since_ns: int | None = None
    works_in: str = ""
    busy_millis: int = 0
    worked_ns: dict[str, int] = msgspec.field(default_factory=dict)
    asked_ns: dict[str, int] = msgspec.field(default_factory=dict)

    @property
    def gpu_millis(self) -> int:
        """Return the GPUs of all members, in thousandths of one."""
        return (self.peak.gpus * WHOLE_MILLIS + self.peak.gpu_millis) * self.arrival.spec.gang_size

    def gpu_millis_in(self, phase: str) -> int:
        """Return what of these they have in a phase: who asks for its phases needs no more than each, others keep all.

        Where it is not known which phase it was, it counts as the one with the most.
        """
        spec = self.arrival.spec
        if not phase or not asks(spec):
            return self.gpu_millis
        need = phase_need(spec, phase)
        return (need.gpus * WHOLE_MILLIS + need.gpu_millis) * spec.gang_size


class _Seat(msgspec.Struct):
    """What one member holds on its node."""

    node: str
    gpus: int
    gpu_millis: int
    cpu_millis: int
    from_ns: int
    first_gpus: int
    first_cpu_millis: int
    held_millis: int
    """Of devices, in thousandths."""


class _There(msgspec.Struct):
    """What a node that is there has, and what of it is held."""

    gpus_millis: int
    cpu_millis: int | None
    held_millis: int = 0
    cpu_held_millis: int = 0


class Tally:
    """All counts. Jobs are known by their arrivals; `open` counts those that have not ended.

    What members hold on a node counts while the node is there: what failed with it nobody can use.
    """

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self.stays: list[Stay] = []
        self.samples: list[Sample] = []
        self.open = 0
        self._nodes: dict[str, _There] = {}
        self._unchecked_nodes: dict[str, str] = {}
        """Those of which more is held than at the last sample, with the job that came to have more there."""

        self._unchecked_jobs: dict[str, None] = {}
        self._seats: dict[tuple[str, int], _Seat] = {}
        self._waiting = self._placed = self._working = 0
        self._held = self._busy = self._cpu = self._total = 0

    # ---- jobs ----

    def expect(self, arrival: Arrival, submitted_ns: int) -> None:
        """Take note of a job that will come, or is there already."""
        self.records[arrival.job] = Record(arrival=arrival, peak=_peak(arrival.spec), submitted_ns=submitted_ns)
        self.open += 1

    def waits(self, job: str, now_ns: int) -> None:
        """The job stands in the queue from now on; its attempt, if it had one, is over."""
        record = self.records[job]
        self._unplace(record)
        record.waits_since_ns = now_ns
        self._waiting += 1

    def placed(self, job: str, now_ns: int) -> None:
        """The job got its places."""
        record = self.records[job]
        self._unwait(record, now_ns)
        if record.first_placed_ns is None:
            record.first_placed_ns = now_ns
        record.placed = True
        self._placed += 1

    def ended(self, job: str, now_ns: int, outcome: str, reasons: tuple[Reason, ...]) -> None:
        """The job is over; reasons count where it did not complete."""
        record = self.records[job]
        self._unwait(record, now_ns)
        self._unplace(record)
        record.ended_ns, record.outcome = now_ns, outcome
        record.reasons = () if outcome == "completed" else reasons
        self.open -= 1

    def waits_because(self, job: str, reason: Reason) -> None:
        """The job waits still as it all ends, for this reason."""
        self.records[job].reasons = (reason,)

    def preempted(self, job: str) -> None:
        """The job was asked to leave for another one."""
        self.records[job].preemptions += 1

    def lost(self, job: str, lost_ns: int, phase: str = "") -> None:
        """So much time of the job came to nothing, and of the GPUs that it has in that phase, if it asks for them."""
        record = self.records[job]
        record.lost_ns += lost_ns
        record.lost_gpu_millis_ns += lost_ns * record.gpu_millis_in(phase)

    def works(self, job: str, now_ns: int, phase: str, busy_millis: int) -> None:
        """The job works from now on, in a phase that needs so much of its GPUs."""
        self.rests(job, now_ns)
        record = self.records[job]
        record.works_since_ns, record.works_in, record.busy_millis = now_ns, phase, busy_millis
        self._working += 1
        self._busy += busy_millis
        self._unchecked_jobs[job] = None

    def rests(self, job: str, now_ns: int) -> None:
        """The job does not work any more; nothing changes where it does not."""
        record = self.records[job]
        if record.works_since_ns is not None:
            _add(record.worked_ns, record.works_in, now_ns - record.works_since_ns)
            record.works_since_ns = None
            self._working -= 1
            self._busy -= record.busy_millis

    def asked(self, job: str, phase: str, asked_ns: int) -> None:
        """The job waited so long for the phase."""
        _add(self.records[job].asked_ns, phase, asked_ns)

    def _unwait(self, record: Record, now_ns: int) -> None:
        if record.waits_since_ns is not None:
            record.waited_ns += now_ns - record.waits_since_ns
            record.waits_since_ns = None
            self._waiting -= 1

    def _unplace(self, record: Record) -> None:
        if record.placed:
            record.placed = False
            self._placed -= 1

    # ---- members ----

    def seated(self, job: str, member: Member, spec: JobSpec, from_ns: int) -> None:
        """A member holds its places from now on."""
        share = self.records[job].peak.gpu_millis
        cpu_millis = quota_millis(spec, member.quotas)
        gpus = len(member.gpu_indices)
        held_millis = _held_millis(spec, member)
        seat = _Seat(member.node, gpus, share, cpu_millis, from_ns, gpus, cpu_millis, held_millis)
        self._seats[(job, member.rank)] = seat
        self._hold(seat, 1)
        self._unchecked_nodes[seat.node] = job

    def changed(self, job: str, member: Member, spec: JobSpec) -> None:
        """A member has other limits or devices."""
        seat = self._seats.get((job, member.rank))
        if seat is not None:
            self._hold(seat, -1)
            before = seat.held_millis, seat.cpu_millis
            seat.gpus, seat.cpu_millis = len(member.gpu_indices), quota_millis(spec, member.quotas)
            seat.held_millis = _held_millis(spec, member)
            self._hold(seat, 1)
            self._unchecked_jobs[job] = None
            if seat.held_millis > before[0] or seat.cpu_millis > before[1]:
                self._unchecked_nodes[seat.node] = job

    def left(self, job: str, rank: int, now_ns: int, outcome: str) -> None:
        """A member is gone; nothing changes where that was counted."""
        seat = self._seats.pop((job, rank), None)
        if seat is not None:
            self._hold(seat, -1)
            self.stays.append(
                Stay(
                    job=job,
                    rank=rank,
                    node=seat.node,
                    gpus=seat.first_gpus,
                    gpu_millis=seat.gpu_millis,
                    cpu_millis=seat.first_cpu_millis,
                    from_ns=seat.from_ns,
                    until_ns=now_ns,
                    ended=outcome,
                )
            )

    def _hold(self, seat: _Seat, sign: int) -> None:
        there = self._nodes.get(seat.node)
        if there is not None:
            self._held += sign * seat.held_millis
            self._cpu += sign * seat.cpu_millis
            there.held_millis += sign * seat.held_millis
            there.cpu_held_millis += sign * seat.cpu_millis

    # ---- the cluster ----

    def node_there(self, node: str, gpus_millis: int, cpu_millis: int | None = None) -> None:
        """A node is there, or is back; whoever has a seat on it holds that from now on. None: its CPUs do not count."""
        self.node_gone(node)
        self._nodes[node] = _There(gpus_millis, cpu_millis)
        self._total += gpus_millis
        self._hold_all(node, 1)

    def node_gone(self, node: str) -> None:
        """A node is gone, and what is held on it; nothing changes where it was not there."""
        if node in self._nodes:
            self._hold_all(node, -1)
            self._total -= self._nodes.pop(node).gpus_millis

    def _hold_all(self, node: str, sign: int) -> None:
        for seat in self._seats.values():
            if seat.node == node:
                self._hold(seat, sign)

    def sample(self, now_ns: int) -> None:
        """Take a sample, if anything differs from the last one; of several at one time the last counts."""
        found = Sample(
            now_ns,
            self._waiting,
            self._placed,
            self._working,
            self._held,
            self._busy,
            self._cpu,
            self._total,
        )
        if self.samples and self.samples[-1].at_ns == now_ns:
            self.samples.pop()
        if not self.samples or msgspec.structs.replace(self.samples[-1], at_ns=now_ns) != found:
            self.samples.append(found)

    def check(self) -> None:
        """Raise SimulationError where somebody works on more than it holds, or came to hold more than there is."""
        for job in self._unchecked_jobs:
            record = self.records[job]
            if record.works_since_ns is None:
                continue
            seats = (self._seats.get((job, rank)) for rank in range(record.arrival.spec.gang_size))
            held_millis = sum(seat.held_millis for seat in seats if seat is not None)
            if record.busy_millis > held_millis:
                raise SimulationError(
                    f"{job} works on {record.busy_millis} thousandths of GPUs, and holds {held_millis}: "
                    "nobody may work on what is not his"
                )
        for name, job in self._unchecked_nodes.items():
            node = self._nodes.get(name)
            if node is None:
                continue
            for what, held, most in (
                ("GPUs", node.held_millis, node.gpus_millis),
                ("CPUs", node.cpu_held_millis, node.cpu_millis),
            ):
                if most is not None and held > most:
                    raise SimulationError(
                        f"{held} thousandths of {what} are held on {name}, which has {most}: "
                        f"the last to be given more there was {job}"
                    )
        self._unchecked_jobs.clear()
        self._unchecked_nodes.clear()

    def close(self, now_ns: int) -> None:
        """Count what goes on still until now, which is where it ended; what the cluster was like later is left out."""
        while len(self.samples) > 1 and self.samples[-1].at_ns > now_ns:
            self.samples.pop()
        for job, rank in list(self._seats):
            self.left(job, rank, now_ns, "")
        for name, record in self.records.items():
            self.rests(name, now_ns)
            if record.waits_since_ns is not None:
                record.waited_ns += now_ns - record.waits_since_ns

    def runs(self) -> tuple[JobRun, ...]:
        """Return what became of each job, in the order in which they were expected."""
        return tuple(_job_run(record) for record in self.records.values())


def _job_run(record: Record) -> JobRun:
    arrival, members = record.arrival, record.arrival.spec.gang_size
    phases = dict.fromkeys([*record.worked_ns, *record.asked_ns])
    return JobRun(
        job=arrival.job,
        tenant=arrival.spec.tenant,
        submitted_ns=record.submitted_ns,
        first_placed_ns=record.first_placed_ns,
        ended_ns=record.ended_ns,
        outcome=record.outcome,
        work_seconds=arrival.truth.work_seconds,
        gpus=record.peak.gpus * members,
        gpu_millis=record.peak.gpu_millis * members,
        preemptions=record.preemptions,
        lost_gpu_ms=record.lost_gpu_millis_ns // (WHOLE_MILLIS * MILLI_NS),
        waited_ns=record.waited_ns,
        asked_ns=sum(record.asked_ns.values()),
        phases=tuple(
            PhaseTime(phase, record.worked_ns.get(phase, 0), record.asked_ns.get(phase, 0)) for phase in phases
        ),
        censored=arrival.truth.censored,
        lost_ms=record.lost_ns // MILLI_NS,
        reasons=record.reasons,
    )


def _held_millis(spec: JobSpec, member: Member) -> int:
    """Return what a member has of devices, in thousandths of one."""
    if not member.gpu_indices:
        return 0
    return len(member.gpu_indices) * device_millis(member_floor(spec), member)


def _peak(spec: JobSpec) -> Resources:
    peak = Resources()
    for phase in spec.phases:
        peak = peak.ceiling(phase_need(spec, phase))
    return peak


def _add(counts: dict[str, int], name: str, more: int) -> None:
    counts[name] = counts.get(name, 0) + more
