"""The read model: `View.apply` folds one frame of the journal, by the void rules of the contract table.

Pure: no clock, no I/O. It mirrors what the scheduler's own fold calls a change of a job (its revision), because only so
can it tell a decision that counts from one that came too late.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping

import msgspec
from tidegate_events import events as e
from tidegate_events.contract import may_say
from tidegate_events.journal.base import Recorded
from tidegate_events.spec import JobSpec
from tidegate_events.subjects import speaks_for

from tidegate_gateway.view import cluster, life, settings
from tidegate_gateway.view.census import Census
from tidegate_gateway.view.model import (
    ENDED_JOBS_MAX,
    Entry,
    Forgotten,
    Job,
    Leader,
    Maintenance,
    Node,
    Progress,
    Queue,
    Timeline,
    WriterSeen,
)
from tidegate_gateway.view.plain import plain

_encoder = msgspec.json.Encoder(order="deterministic")


def spec_digest(spec: JobSpec) -> str:
    """Return a digest that two specifications share exactly when they are equal.

    Not of the wire form: msgspec leaves a default out only where it is the same object, so equal ones can differ there.
    """
    return hashlib.sha256(_encoder.encode(plain(spec))).hexdigest()


class View:
    """Everything that reads are answered from."""

    def __init__(self, *, ended_jobs_max: int = ENDED_JOBS_MAX, keeps_timelines: bool = True) -> None:
        self.seq = 0
        self.events = 0
        self.void_events = 0
        self.passes = 0
        self.decisions = 0
        self.policy = 0
        self.ended = 0
        self.leader: Leader | None = None
        self.jobs: dict[str, Job] = {}
        self.forgotten: dict[str, Forgotten] = {}
        self.nodes: dict[str, Node] = {}
        self.queues: dict[str, Queue] = {}
        self.maintenance: dict[str, Maintenance] = {}
        self.writers: dict[tuple[str, str], WriterSeen] = {}
        self.census = Census()
        self._ended: deque[str] = deque()
        self._ended_jobs_max = ended_jobs_max
        self._keeps_timelines = keeps_timelines

    def resume(
        self, progress: Progress, jobs: Iterable[Job], nodes: Iterable[Node], forgotten: Mapping[str, Forgotten]
    ) -> None:
        """Go on from where another view was left, `jobs` in the order of their submission.

        Queues, maintenance windows and writers are the caller's to fill in.
        """
        for name in Progress.__struct_fields__:
            setattr(self, name, getattr(progress, name))
        self.jobs = {job.id: job for job in jobs}
        self.nodes = {node.name: node for node in nodes}
        self.forgotten = dict(forgotten)
        for job in self.jobs.values():
            self.census.note(job)
        for gone in self.forgotten.values():
            self.census.note_forgotten(gone)
        ended = [job for job in self.jobs.values() if job.ended_order is not None]
        self._ended.extend(job.id for job in sorted(ended, key=lambda job: job.ended_order or 0))

    @property
    def progress(self) -> Progress:
        """Return where the fold stands, beside jobs, nodes and writers."""
        return Progress(**{name: getattr(self, name) for name in Progress.__struct_fields__})

    def apply(self, recorded: Recorded) -> tuple[bool, ...]:
        """Fold the frame that follows; return which of its events counted (the others came too late, or are void).

        Raises ValueError where a frame is missing, because history has no gaps.
        """
        return tuple(not entry.void for entry in self.steps(recorded))

    def steps(self, recorded: Recorded) -> Iterator[Entry]:
        """Fold the frame that follows event by event, yielding each once it is folded; to be run to its end.

        Raises ValueError where a frame is missing.
        """
        if recorded.seq != self.seq + 1:
            raise ValueError(f"frame {recorded.seq} cannot follow {self.seq}: history has no gaps")
        self.seq = recorded.seq
        writer = recorded.frame.writer
        stale = not self._is_news(recorded)
        for index, event in enumerate(recorded.frame.events):
            self.events += 1
            void = stale or not may_say(writer, event) or not self._on_event(event)
            self.void_events += void
            entry = Entry(recorded.seq, index, event, writer, void)
            if isinstance(event, e.JobEvent) and (job := self.jobs.get(event.job)) is not None:
                job.events += 1
                if self._keeps_timelines:
                    job.timeline.add(entry)
            yield entry
        self._forget_oldest()

    def _is_news(self, recorded: Recorded) -> bool:
        """Note the writer; say whether the frame is its own, no late duplicate, and of no deposed leader."""
        writer = recorded.frame.writer
        if not speaks_for(recorded.subject, writer):
            return False
        seen = self.writers.get((writer.service, writer.instance))
        if seen is not None and (writer.epoch, writer.writer_seq) <= (seen.epoch, seen.writer_seq):
            return False
        if writer.service == "scheduler" and self.leader is not None and writer.epoch < self.leader.epoch:
            return False
        last_at_ns = recorded.frame.events[-1].at_ns
        self.writers[(writer.service, writer.instance)] = WriterSeen(
            writer.epoch, writer.writer_seq, recorded.seq, last_at_ns
        )
        return True

    def _on_event(self, event: e.Event) -> bool:
        """Change what the event changes; say whether it counted."""
        if isinstance(event, e.JobSubmitted):
            return self._on_submitted(event)
        if isinstance(event, e.JobEvent):
            cluster.on_job_event(self.nodes, event)
            job = self.jobs.get(event.job)
            return job is not None and self._on_job_event(job, event)
        if isinstance(event, e.LeaderElected | e.PolicyChanged | e.GenerationOpened | e.DecisionPass):
            return self._on_course(event)
        if isinstance(event, settings.Setting):
            return settings.on_setting(self.queues, self.maintenance, event)
        return cluster.on_node_event(self.nodes, self.jobs_on, event)

    def _on_submitted(self, event: e.JobSubmitted) -> bool:
        if event.job in self.jobs or event.job in self.forgotten:
            return False
        job = self.jobs[event.job] = Job(
            id=event.job,
            tenant=event.tenant,
            spec=event.spec,
            spec_digest=spec_digest(event.spec),
            submitted_seq=self.seq,
            submitted_at_ns=event.at_ns,
            timeline=Timeline(),
            priority=event.spec.priority,
            time_limit_seconds=event.spec.time_limit_seconds,
        )
        self.census.note(job)
        return True

    def _on_job_event(self, job: Job, event: e.JobEvent) -> bool:
        if isinstance(event, e.JobPlaced) and not cluster.can_take(self.nodes, event):
            return False
        was_ended = job.ended
        counted = life.on_event(job, event, self.seq)
        if counted and isinstance(event, e.Decision):
            self.decisions += 1
            if isinstance(event, e.JobPlaced | e.QuotaChanged):
                cluster.hold(self.nodes, job)
        if job.ended and not was_ended:
            self.ended += 1
            job.ended_order = self.ended
            self._ended.append(job.id)
        if counted:
            self.census.note(job)
        return counted

    def _on_course(self, event: e.LeaderElected | e.PolicyChanged | e.GenerationOpened | e.DecisionPass) -> bool:
        """Note who leads, by what, and how far."""
        if isinstance(event, e.LeaderElected):
            return self._on_leader_elected(event)
        if isinstance(event, e.DecisionPass):
            return self._on_pass(event)
        if isinstance(event, e.PolicyChanged):
            self.policy = event.policy
        return True

    def _on_leader_elected(self, event: e.LeaderElected) -> bool:
        if self.leader is not None and event.epoch <= self.leader.epoch:
            return False
        self.leader = Leader(event.epoch, event.instance)
        return True

    def _on_pass(self, event: e.DecisionPass) -> bool:
        if self.leader is None or event.epoch != self.leader.epoch:
            return False
        self.passes += 1
        self.leader.last_pass_seq = self.seq
        self.leader.last_pass_at_ns = event.now_ns
        return True

    def jobs_on(self, node: str) -> list[Job]:
        """Return the jobs whose current attempt has a member on the node, in the order of their submission."""
        there = [self.jobs[name] for name in self.census.seating.on(node)]
        return sorted(there, key=lambda job: (job.submitted_seq, job.id))

    @property
    def forgotten_order(self) -> int:
        """Return the `ended_order` up to which jobs are forgotten."""
        return self.ended - self._ended_jobs_max

    def _forget_oldest(self) -> None:
        """Keep memory bounded: of jobs that ended long ago only a line remains."""
        while len(self._ended) > self._ended_jobs_max:
            job = self.jobs.pop(self._ended.popleft())
            self.forgotten[job.id] = Forgotten(job.tenant, job.state, job.spec_digest)
            self.census.forget(job)
