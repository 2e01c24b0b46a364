"""What the journal says in numbers: waiting, preemptions, GPU time. A pure fold, with the void rules of the contract.

Folded from the beginning, it gives the same counters after every restart: nothing of it has to be stored, and nothing
is counted twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from tidegate_events import events as e
from tidegate_events.contract import may_write
from tidegate_events.journal.base import Recorded
from tidegate_events.seating import Seating
from tidegate_events.subjects import speaks_for

from tidegate_metrics import asked
from tidegate_metrics.catalogue import PREEMPTION_BUCKETS, WAIT_BUCKETS
from tidegate_metrics.histogram import Histogram
from tidegate_metrics.job_track import JobTrack, MemberTrack, NodeTrack, new_job

NS_PER_SECOND = 1_000_000_000


class JournalMetrics:
    """The fold. A queue is a tenant's."""

    def __init__(self) -> None:
        self.seq = 0
        self.jobs: dict[str, JobTrack] = {}
        self.nodes: dict[str, NodeTrack] = {}
        self.queue_wait: dict[str, Histogram] = {}
        self.preemption_latency: dict[str, Histogram] = {}
        self.preemptions: Counter[str] = Counter()
        self.ended: Counter[tuple[str, str]] = Counter()
        self.lost_gpu_ns: Counter[str] = Counter()
        self._finished: set[str] = set()
        self._seating = Seating()
        self._writers: dict[str, tuple[int, int]] = {}
        self._epoch = 0

    def apply(self, recorded: Recorded) -> None:
        """Fold the next frame. Raises ValueError where one is missing: history has no gaps."""
        if recorded.seq != self.seq + 1:
            raise ValueError(f"frame {recorded.seq} cannot follow {self.seq}: history has no gaps")
        self.seq = recorded.seq
        writer = recorded.frame.writer
        name, mark = f"{writer.service}/{writer.instance}", (writer.epoch, writer.writer_seq)
        if not speaks_for(recorded.subject, writer) or mark <= self._writers.get(name, (0, -1)):
            return
        if writer.service == "scheduler" and writer.epoch < self._epoch:
            return
        self._writers[name] = mark
        for event in recorded.frame.events:
            own = writer.service != "node" or getattr(event, "node", writer.instance) == writer.instance
            if own and may_write(writer.service, type(event).__name__):
                rule = _RULES.get(type(event))
                if rule is not None:
                    rule(self, event)

    # ---- what it says ----

    def oldest_waiting_ns(self) -> dict[str, int]:
        """Return since when the longest waiting job of each queue waits."""
        oldest: dict[str, int] = {}
        for job in self.jobs.values():
            if job.stage == "waiting":
                oldest[job.tenant] = min(job.since_ns, oldest.get(job.tenant, job.since_ns))
        return oldest

    def waiting(self) -> Counter[str]:
        """Return how many jobs wait in each queue."""
        return Counter(job.tenant for job in self.jobs.values() if job.stage == "waiting")

    def running(self) -> Counter[str]:
        """Return how many jobs of each queue hold room."""
        return Counter(job.tenant for job in self.jobs.values() if job.stage != "waiting")

    def gpus(self) -> dict[str, int]:
        """Return the GPUs by state."""
        return {
            "capacity": sum(node.gpus for node in self.nodes.values() if node.status != "lost"),
            "allocated": sum(job.gpus_held for job in self.jobs.values()),
            "lent": sum(job.gpus_lent for job in self.jobs.values()),
        }

    # ---- facts ----

    def _on_submitted(self, event: e.JobSubmitted) -> None:
        if event.job not in self.jobs and event.job not in self._finished:
            self.jobs[event.job] = new_job(event.job, event.tenant, event.traceparent, event.spec, event.at_ns)

    def _on_cancel_requested(self, event: e.CancelRequested) -> None:
        job = self.jobs.get(event.job)
        if job is not None and not job.cancel_requested:
            job.cancel_requested = True
            job.revision += 1

    def _on_asked(self, event: asked.Asking) -> None:
        job = self.jobs.get(event.job)
        if job is not None:
            asked.apply(job, event)

    def _on_rejected_placement(self, event: e.PlacementRejected) -> None:
        self._member_goes(event, only="ordered")

    def _on_sandbox_started(self, event: e.SandboxStarted) -> None:
        job = self.jobs.get(event.job)
        member = job.member(event.attempt, event.rank) if job else None
        if job is not None and member is not None and member.status == "ordered" and member.node == event.node:
            member.status = "started"
            job.revision += 1

    def _on_sandbox_exited(self, event: e.SandboxExited) -> None:
        self._member_goes(event, only=None)

    def _member_goes(self, event: e.SandboxExited | e.PlacementRejected, *, only: str | None) -> None:
        job = self.jobs.get(event.job)
        member = job.member(event.attempt, event.rank) if job else None
        if job is None or member is None or not member.active or member.node != event.node:
            return
        if only is None or member.status == only:
            member.status = "gone"
            job.revision += 1

    def _on_checkpoint_saved(self, event: e.CheckpointSaved) -> None:
        job = self.jobs.get(event.job)
        if job is not None and event.rank == 0 and event.attempt == job.attempt:
            job.saved_ns = max(job.saved_ns, event.at_ns)

    def _on_step_rate(self, event: e.StepRateLow | e.StepRateRecovered) -> None:
        job = self.jobs.get(event.job)
        if job is not None and event.attempt == job.attempt:
            job.rate_low = isinstance(event, e.StepRateLow)

    # ---- nodes ----

    def _on_node_joined(self, event: e.NodeJoined) -> None:
        known = self.nodes.get(event.node)
        if known is not None and event.incarnation <= known.incarnation:
            return
        self.nodes[event.node] = NodeTrack(event.incarnation, len(event.gpus))
        held = {(s.job, s.attempt, s.rank) for s in event.sandboxes}
        for job in self._jobs_on(event.node):
            for member in job.members:
                here = member.node == event.node and member.status == "started"
                if here and (job.id, job.attempt, member.rank) not in held:
                    _lose(job, member)

    def _on_node_status(self, event: e.NodeUnreachable | e.NodeReachable) -> None:
        node = self.nodes.get(event.node)
        if node is None or node.incarnation != event.incarnation:
            return
        if isinstance(event, e.NodeReachable):
            node.status = "up"
        elif node.status == "up":
            node.status = "unreachable"

    def _on_node_lost(self, event: e.NodeLost) -> None:
        node = self.nodes.get(event.node)
        if node is None or node.incarnation != event.incarnation or node.status == "lost":
            return
        node.status = "lost"
        for job in self._jobs_on(event.node):
            for member in job.members:
                if member.node == event.node and member.active:
                    _lose(job, member)

    def _jobs_on(self, node: str) -> list[JobTrack]:
        return [self.jobs[name] for name in self._seating.on(node)]

    def _on_node_forgotten(self, event: e.NodeForgotten | e.NodeForgetRequested) -> None:
        node = self.nodes.get(event.node)
        if node is None or node.status != "lost":
            return
        if isinstance(event, e.NodeForgetRequested) or node.incarnation == event.incarnation:
            del self.nodes[event.node]

    # ---- decisions ----

    def _current(self, event: e.Decision) -> JobTrack | None:
        job = self.jobs.get(event.job)
        return job if job is not None and job.revision == event.revision else None

    def _on_placed(self, event: e.JobPlaced) -> None:
        job = self._current(event)
        if job is None or job.stage != "waiting" or not self._can_take(event):
            return
        self.queue_wait.setdefault(job.tenant, Histogram(WAIT_BUCKETS)).add(
            (event.at_ns - job.since_ns) / NS_PER_SECOND
        )
        job.members = [MemberTrack(m.rank, m.node, len(m.gpu_indices)) for m in event.members]
        self._seating.seat(job.id, tuple(dict.fromkeys([member.node for member in event.members])))
        job.stage, job.attempt, job.since_ns = "placed", event.attempt, event.at_ns
        job.started_ns = job.saved_ns = job.preempt_ns = 0
        job.rate_low = False
        job.revision += 1

    def _can_take(self, event: e.JobPlaced) -> bool:
        for placement in event.members:
            node = self.nodes.get(placement.node)
            if node is None or node.incarnation != placement.incarnation or node.status != "up":
                return False
        return True

    def _on_started(self, event: e.JobStarted | e.JobResumed) -> None:
        job = self._current(event)
        if job is not None and job.stage == "placed":
            job.stage, job.started_ns = "running", event.at_ns
            job.revision += 1

    def _on_room_reserved(self, event: e.RoomReserved) -> None:
        job = self._current(event)
        if job is not None and job.stage == "waiting":
            job.revision += 1

    def _on_preempt_requested(self, event: e.PreemptRequested) -> None:
        job = self._current(event)
        if job is not None and job.stage in ("placed", "running"):
            job.stage, job.preempt_ns = "preempting", event.at_ns
            job.held = job.held or event.hold
            job.revision += 1
            if not event.hold:  # an operator's suspension is none
                self.preemptions[job.tenant] += 1

    def _on_stop_requested(self, event: e.StopRequested) -> None:
        job = self._current(event)
        if job is not None and job.stage != "waiting":
            job.stage = "stopping"
            job.revision += 1

    def _on_back_to_queue(self, event: e.JobSuspended | e.JobRequeued) -> None:
        job = self._current(event)
        if job is None:
            return
        self._note_left(job, event.at_ns)
        if isinstance(event, e.JobRequeued) or not event.acknowledged:
            useful_until = max(job.saved_ns, job.started_ns or job.since_ns)
            self.lost_gpu_ns[job.tenant] += job.gpus * max(0, event.at_ns - useful_until)
        job.stage, job.since_ns, job.members = "waiting", event.at_ns, []
        self._seating.seat(job.id, ())
        asked.back_in_queue(job)
        job.revision += 1

    def _on_ended(self, event: e.Decision) -> None:
        job = self._current(event)
        if job is None:
            return
        self._note_left(job, event.at_ns)
        del self.jobs[job.id]
        self._seating.seat(job.id, ())
        self._finished.add(job.id)
        self.ended[job.tenant, _OUTCOMES[type(event)]] += 1

    def _note_left(self, job: JobTrack, at_ns: int) -> None:
        if job.preempt_ns:
            latency = self.preemption_latency.setdefault(job.tenant, Histogram(PREEMPTION_BUCKETS))
            latency.add((at_ns - job.preempt_ns) / NS_PER_SECOND)
            job.preempt_ns = 0

    def _on_leader_elected(self, event: e.LeaderElected) -> None:
        self._epoch = max(self._epoch, event.epoch)


def _lose(job: JobTrack, member: MemberTrack) -> None:
    member.status = "gone"
    job.revision += 1


_OUTCOMES: dict[type[e.Event], str] = {
    e.JobRejected: "rejected",
    e.JobCompleted: "completed",
    e.JobFailed: "failed",
    e.JobCancelled: "cancelled",
}
_RULES: dict[type[e.Event], Callable[[JournalMetrics, Any], None]] = {
    e.JobSubmitted: JournalMetrics._on_submitted,
    e.CancelRequested: JournalMetrics._on_cancel_requested,
    **dict.fromkeys(asked.Asking.__args__, JournalMetrics._on_asked),
    e.PlacementRejected: JournalMetrics._on_rejected_placement,
    e.SandboxStarted: JournalMetrics._on_sandbox_started,
    e.SandboxExited: JournalMetrics._on_sandbox_exited,
    e.CheckpointSaved: JournalMetrics._on_checkpoint_saved,
    e.StepRateLow: JournalMetrics._on_step_rate,
    e.StepRateRecovered: JournalMetrics._on_step_rate,
    e.NodeJoined: JournalMetrics._on_node_joined,
    e.NodeUnreachable: JournalMetrics._on_node_status,
    e.NodeReachable: JournalMetrics._on_node_status,
    e.NodeLost: JournalMetrics._on_node_lost,
    e.NodeForgotten: JournalMetrics._on_node_forgotten,
    e.NodeForgetRequested: JournalMetrics._on_node_forgotten,
    e.LeaderElected: JournalMetrics._on_leader_elected,
    e.JobPlaced: JournalMetrics._on_placed,
    e.JobStarted: JournalMetrics._on_started,
    e.JobResumed: JournalMetrics._on_started,
    e.RoomReserved: JournalMetrics._on_room_reserved,
    e.PreemptRequested: JournalMetrics._on_preempt_requested,
    e.StopRequested: JournalMetrics._on_stop_requested,
    e.JobSuspended: JournalMetrics._on_back_to_queue,
    e.JobRequeued: JournalMetrics._on_back_to_queue,
    **dict.fromkeys(_OUTCOMES, JournalMetrics._on_ended),
}
