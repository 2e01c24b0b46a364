"""When waiting jobs may start, as far as that is known: a forecast for people, never an input of a decision.

It walks the queue in order and seats each job at the first moment at which it fits, given when those who hold room end:
at the end of their grace period (those that leave), after the time they expected, or at their time limit. What rests on
nothing declared is unknown, and whoever needs it is unknown too. Like everything here it reads no clock.
"""

from __future__ import annotations

import msgspec
from tidegate_events.resources import GpuDevice, Resources

from tidegate_scheduler.policy.first import fit
from tidegate_scheduler.policy.first.room import Space
from tidegate_scheduler.policy.outlook import BASES, Start
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import LEAVING_STAGES, Job, State

LOOKS_MAX = 20_000
"""Spaces worked out in one forecast: it runs beside decisions and must not delay them."""


class _Hold(msgspec.Struct):
    """Room of one member on a node, until `end` (None: nobody knows)."""

    job: str
    need: Resources
    gpu_indices: tuple[int, ...]
    begin_ns: int
    end: Start | None


class _Exhausted(Exception):
    """The bound on work is reached."""


def forecast(state: State, in_line: list[Job], now_ns: int) -> dict[str, Start]:
    """Return the known starts of the jobs in line, by job; who is not in it is unknown."""
    plan = _Plan(state, now_ns)
    starts: dict[str, Start] = {}
    for job in in_line:
        try:
            start = plan.seat(job)
        except _Exhausted:
            break
        if start is not None:
            starts[job.id] = start
    return starts


class _Plan:
    """The future of every node: who holds what until when."""

    def __init__(self, state: State, now_ns: int) -> None:
        self._state = state
        self._now_ns = now_ns
        self._suitable = fit.Suitable(state)
        self._holds: dict[str, list[_Hold]] = {name: [] for name in state.nodes}
        # As in a pass, whoever is blocked closes the nodes it waits for to those behind it; None: none knows how long.
        self._closed: dict[str, Start | None] = {}
        self._looks = 0
        for job in state.jobs.values():
            for member in job.members:
                if member.active and member.node in self._holds:
                    hold = _Hold(job.id, state.floors[job.id], member.gpu_indices, 0, self._end_of(job))
                    self._holds[member.node].append(hold)

    def seat(self, job: Job) -> Start | None:
        """Return when `job` fits first, and hold its room from then on; None where that is not known."""
        nodes = self._suitable.eligible(job)
        earliest = Start(self._now_ns, "now")
        if job.not_before_ns > self._now_ns:
            earliest = Start(job.not_before_ns, "backoff")
        names = [node.name for node in nodes]
        for moment in self._moments(earliest, names):
            at_ns = moment.at_ns
            open_nodes = [node for node in nodes if self._is_open(node.name, at_ns)]
            seats = fit.seat_gang(self._state, job, open_nodes, lambda name, at_ns=at_ns: self._space(name, at_ns))  # type: ignore[misc]
            if seats is not None:
                self._hold(job, seats, moment)
                if at_ns > earliest.at_ns and not job.reserved_nodes:
                    self._closed.update(dict.fromkeys(names, moment))
                return moment
        self._closed.update(dict.fromkeys(names, None))
        return None

    def _is_open(self, name: str, at_ns: int) -> bool:
        if name not in self._closed:
            return True
        until = self._closed[name]
        return until is not None and until.at_ns <= at_ns

    def _moments(self, earliest: Start, names: list[str]) -> list[Start]:
        """Return every known moment from `earliest` on at which room comes free, in order."""
        ends = {hold.end for name in names for hold in self._holds[name] if hold.end is not None}
        ends |= {until for name in names if (until := self._closed.get(name)) is not None}
        moments, basis = [earliest], earliest.basis
        for end in sorted(ends, key=lambda end: (end.at_ns, BASES.index(end.basis))):
            basis = max(basis, end.basis, key=BASES.index)
            if end.at_ns > earliest.at_ns:
                moments.append(Start(end.at_ns, basis))
        return moments

    def _space(self, name: str, at_ns: int) -> Space:
        """Return the room on a node from `at_ns` on, for good: what begins later is held already."""
        self._looks += 1
        if self._looks > LOOKS_MAX:
            raise _Exhausted
        node = self._state.nodes[name]
        held = [hold for hold in self._holds[name] if hold.end is None or hold.end.at_ns > at_ns]
        taken = {index for hold in held for index in hold.gpu_indices}
        gpus: list[GpuDevice] = [gpu for gpu in node.gpus if gpu.index not in taken]
        return Space(
            node.capacity.cpu_millis - sum(hold.need.cpu_millis for hold in held),
            node.capacity.memory_mib - sum(hold.need.memory_mib for hold in held),
            gpus,
            len(gpus),
        )

    def _hold(self, job: Job, seats: tuple[fit.Seat, ...], start: Start) -> None:
        length = self._length_of(job)
        end = None
        if length is not None:
            basis = max(start.basis, length.basis, key=BASES.index)
            end = Start(start.at_ns + length.at_ns, basis)
        for seat in seats:
            self._holds[seat.node].append(_Hold(job.id, self._state.floors[job.id], seat.gpu_indices, start.at_ns, end))

    def _end_of(self, job: Job) -> Start | None:
        """Return when a job that holds room gives it back, None where that is not known."""
        if job.stage in LEAVING_STAGES:
            return Start(max(job.deadline_ns, self._now_ns), "deadline")
        began_ns = job.started_ns if job.stage == "running" else max(job.placed_ns, self._now_ns)
        length = self._length_of(job, overdue_ns=self._now_ns - began_ns)
        return None if length is None else Start(began_ns + length.at_ns, length.basis)

    def _length_of(self, job: Job, overdue_ns: int = 0) -> Start | None:
        """Return how long an attempt still takes from its start (as a Start from 0), by what the job declared.

        A job that has run for longer than it expected is only bounded by its limit.
        """
        spec = self._state.specs[job.id]
        if spec.expected_seconds is not None:
            expected_ns = spec.expected_seconds * SECOND_NS - job.ran_ns
            if expected_ns > overdue_ns:
                return Start(expected_ns, "expected")
        if spec.time_limit_seconds is None:
            return None
        return Start(max(spec.time_limit_seconds * SECOND_NS - job.ran_ns, overdue_ns), "limit")
