"""The cluster as a model: it sees what was decided, and what follows from that becomes facts at later times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegate_events import events as e

from tidegate_scheduler.simulator.admission import apart, overdrawn, overfull
from tidegate_scheduler.simulator.attempt import Attempt
from tidegate_scheduler.simulator.errors import SimulationError
from tidegate_scheduler.simulator.sandbox import Ground, Sandbox
from tidegate_scheduler.simulator.work import MILLI_NS, Work
from tidegate_scheduler.simulator.workload import Truth
from tidegate_scheduler.state import Job, Member, State


class World:
    """Every job's work, and the attempts that there are. Decisions are told in their order, after they were folded."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._state: State = ground.nodes.scribe.state
        self._works: dict[str, Work] = {}
        self._attempts: dict[str, Attempt] = {}
        ground.nodes.crashes, ground.nodes.returns = self._crash, self._return
        self._reactions: dict[type[e.Event], Callable[[Any, int], None]] = {
            e.JobPlaced: self._on_placed,
            e.QuotaChanged: self._on_quota_changed,
            e.HandBackRequested: self._on_hand_back,
            e.PreemptRequested: self._on_preempt,
            e.StopRequested: self._on_stop,
            e.JobSuspended: self._on_queued,
            e.JobRequeued: self._on_queued,
            e.JobCompleted: self._on_ended,
            e.JobFailed: self._on_ended,
            e.JobCancelled: self._on_ended,
            e.JobRejected: self._on_ended,
            e.ImagePrefetchHinted: self._on_hint,
        }

    def expect(self, job: str, truth: Truth, base_step: int = 0) -> None:
        """Take note of what a job will really do."""
        self._works[job] = Work(truth, base_step)

    def decided(self, event: e.AnyEvent, now_ns: int) -> None:
        """Let follow what follows from a decision."""
        reaction = self._reactions.get(type(event))
        if reaction is not None:
            reaction(event, now_ns)

    def held_on(self, node: str) -> tuple[e.HeldSandbox, ...]:
        """Return the sandboxes that run on a node."""
        return tuple(
            e.HeldSandbox(job=name, attempt=attempt.number, rank=sandbox.rank)
            for name, attempt in self._attempts.items()
            for sandbox in attempt.sandboxes.values()
            if sandbox.node == node and sandbox.status == "started"
        )

    # ---- jobs that are placed ----

    def _on_placed(self, event: e.JobPlaced, now_ns: int) -> None:
        job = self._state.jobs[event.job]
        self._admit(job, event)
        work = self._works[event.job]
        work.go_back(event.resume.id if event.resume is not None else "")
        attempt = self._attempt(job, resumed=event.resume is not None)
        self._ground.tally.placed(job.id, now_ns)
        for member in job.members:
            self._ground.tally.seated(job.id, member, attempt.spec, now_ns)
            self._order(attempt, Sandbox(member.rank, member.node, member.quotas), now_ns)

    def _admit(self, job: Job, event: e.JobPlaced) -> None:
        """Refuse a placement that came to nothing, or that gives away what others have: rules must not decide so."""
        if job.stage != "placed" or job.attempt != event.attempt:
            raise SimulationError(
                f"the rules placed {job.id} when or where it cannot be: it has to wait, and its nodes have to be up"
            )
        for name in sorted({member.node for member in job.members}):
            if problem := overfull(self._state, self._state.nodes[name]):
                raise SimulationError(f"the rules placed {job.id} on {name}, of which they gave away {problem}")
        if self._state.elastic and (problem := apart(self._state, job)):  # policy 1 keeps no gang together
            raise SimulationError(f"the rules placed {job.id}, whose members have to be close together, {problem}")

    def _attempt(self, job: Job, *, resumed: bool) -> Attempt:
        attempt = Attempt(self._ground, job.id, self._state.specs[job.id], self._works[job.id], job.attempt)
        attempt.resumed = resumed
        self._attempts[job.id] = attempt
        return attempt

    def _order(self, attempt: Attempt, sandbox: Sandbox, now_ns: int) -> None:
        """Let a node start a member, once it has the image; one that is away does when it is back."""
        nodes, image = self._ground.nodes, attempt.spec.image
        there_ns = nodes.has_image_ns(sandbox.node, image, now_ns)
        start_ns = self._ground.costs.start_ms * MILLI_NS
        if there_ns is None:
            reason = e.Reason(code="ImageMissing", detail=f"image {image} is not on {sandbox.node}")
            attempt.refuse(sandbox, reason, now_ns + start_ns)
        elif nodes.by_name[sandbox.node].takes_orders:
            nodes.pull(sandbox.node, image, now_ns)
            attempt.order(sandbox, there_ns + start_ns)
        else:
            attempt.sandboxes[sandbox.rank] = sandbox

    def _on_quota_changed(self, event: e.QuotaChanged, now_ns: int) -> None:
        attempt = self._current(event.job, event.attempt)
        sandbox = attempt.sandboxes.get(event.rank) if attempt is not None else None
        if attempt is None or sandbox is None or not sandbox.there:
            return
        if problem := overdrawn(self._state, self._state.nodes[sandbox.node]):
            raise SimulationError(
                f"the rules changed what {event.job} has on {sandbox.node}, of which they gave away {problem}"
            )
        self._ground.tally.changed(event.job, self._member(event.job, event.rank), attempt.spec)
        attempt.limit(sandbox, event.quotas, event.phase, now_ns)

    def _on_hand_back(self, event: e.HandBackRequested, now_ns: int) -> None:
        attempt = self._current(event.job, event.attempt)
        sandbox = attempt.sandboxes.get(event.rank) if attempt is not None else None
        if attempt is not None and sandbox is not None and sandbox.status == "started":
            attempt.recall(sandbox, event.deadline_ns, now_ns)

    # ---- jobs that leave ----

    def _on_preempt(self, event: e.PreemptRequested, now_ns: int) -> None:
        attempt = self._current(event.job, event.attempt)
        if attempt is not None:
            if event.for_job:
                self._ground.tally.preempted(event.job)
            attempt.leave(event.deadline_ns, now_ns)

    def _on_stop(self, event: e.StopRequested, now_ns: int) -> None:
        attempt = self._current(event.job, event.attempt)
        if attempt is not None:
            attempt.stop(now_ns)

    def _on_queued(self, event: e.JobSuspended | e.JobRequeued, now_ns: int) -> None:
        self._abandon(event.job, now_ns)
        self._ground.tally.waits(event.job, now_ns)

    def _on_ended(self, event: e.JobCompleted | e.JobFailed | e.JobCancelled | e.JobRejected, now_ns: int) -> None:
        self._abandon(event.job, now_ns)
        del self._works[event.job]
        self._ground.tally.ended(event.job, now_ns, _OUTCOMES[type(event)], event.reasons)

    def _abandon(self, job: str, now_ns: int) -> None:
        attempt = self._attempts.pop(job, None)
        if attempt is not None:
            attempt.abandon(now_ns)

    # ---- nodes ----

    def _on_hint(self, event: e.ImagePrefetchHinted, now_ns: int) -> None:
        self._ground.nodes.pull(event.node, event.image, now_ns)

    def _crash(self, node: str, now_ns: int) -> None:
        for attempt in list(self._attempts.values()):
            attempt.crash(node, now_ns)

    def _return(self, node: str, now_ns: int) -> None:
        """Have a node that is back start what it was to start when it went away."""
        for attempt in list(self._attempts.values()):
            for sandbox in list(attempt.sandboxes.values()):
                if sandbox.node == node and sandbox.status == "ordered" and sandbox.starting is None:
                    self._order(attempt, sandbox, now_ns)

    # ---- what the simulation begins with ----

    def adopt(self, job: Job, now_ns: int, *, sent_back: bool = False) -> None:
        """Go on with an attempt that there is already; what it really does is what is left to do.

        `sent_back`: it is leaving since this very moment, so what it did until now is saved first.
        """
        attempt = self._attempt(job, resumed=False)
        self._ground.tally.placed(job.id, now_ns)
        for member in job.members:
            sandbox = _sandbox_of(member)
            attempt.sandboxes[member.rank] = sandbox
            if sandbox.there:
                self._ground.tally.seated(job.id, member, attempt.spec, now_ns)
        for sandbox in list(attempt.sandboxes.values()):
            if sandbox.status == "ordered":
                self._order(attempt, sandbox, now_ns)
        if job.stage == "stopping":
            attempt.stop(now_ns)
        elif job.stage == "preempting":
            worked = sent_back and any(member.status == "started" for member in job.members)
            attempt.leave(job.deadline_ns, now_ns, worked=worked)
        else:
            attempt.go_on(job, now_ns)

    def _current(self, job: str, number: int) -> Attempt | None:
        attempt = self._attempts.get(job)
        return attempt if attempt is not None and attempt.number == number else None

    def _member(self, job: str, rank: int) -> Member:
        return next(member for member in self._state.jobs[job].members if member.rank == rank)


_OUTCOMES: dict[type[e.Event], str] = {
    e.JobCompleted: "completed",
    e.JobFailed: "failed",
    e.JobCancelled: "cancelled",
    e.JobRejected: "rejected",
}


def _sandbox_of(member: Member) -> Sandbox:
    found = Sandbox(member.rank, member.node, member.quotas, phase=member.phase, asked=member.wanted)
    found.asked_ns = member.wanted_ns
    if member.status == "started":
        found.status = "started"
    elif not member.active:
        found.status = "gone"
    return found
