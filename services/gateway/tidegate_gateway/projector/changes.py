"""Finds out which rows a run of frames changes. Pure: folds the view, and notes what each event can have touched."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from tidegate_events import events as e
from tidegate_events.journal.base import Recorded

from tidegate_gateway.database.columns import text
from tidegate_gateway.projector.tables import (
    BLOCK_FRAMES,
    Key,
    Row,
    allocation_row,
    attempt_row,
    checkpoint_row,
    event_row,
    job_row,
    maintenance_row,
    node_row,
    queue_row,
    writer_row,
)
from tidegate_gateway.view.model import Attempt, Checkpoint, Entry, Job
from tidegate_gateway.view.projection import View

Held = dict[str, dict[Key, Row]]
"""The rows of `allocations` that are written, by node."""
_ON_CHECKPOINTS = e.CheckpointSaved | e.CheckpointVerified | e.CheckpointFailed


class Rows(msgspec.Struct, frozen=True):
    """Everything that one transaction writes; the lists are rows of the tables of the same name."""

    jobs: list[Row]
    attempts: list[Row]
    nodes: list[Row]
    gone_nodes: list[Row]
    allocations: list[Row]
    gone_allocations: list[Row]
    checkpoints: list[Row]
    queues: list[Row]
    maintenance: list[Row]
    gone_maintenance: list[Row]
    writers: list[Row]
    events: list[Row]
    event_blocks: list[Row]


class Changes:
    """Folds frames into the view and keeps what they touched, as it is after the last of them."""

    def __init__(self, view: View, held: Held) -> None:
        """Begin with nothing; `held` is brought up to date by `rows`."""
        self.last_at_ns: int | None = None
        self._view = view
        self._held = held
        # The things themselves, not only their names: the view may forget a job in the frame that ended it.
        self._jobs: dict[str, Job] = {}
        self._attempts: dict[tuple[str, int], Attempt] = {}
        self._checkpoints: dict[tuple[str, int], Checkpoint] = {}
        self._nodes: set[str] = set()
        self._nodes_before = set(view.nodes)
        self._queues: set[str] = set()
        self._windows: set[str] = set()
        self._windows_before = set(view.maintenance)
        self._writers: set[tuple[str, str]] = set()
        self._events: list[Row] = []
        self._blocks: dict[int, tuple[int, int]] = {}

    @property
    def events(self) -> int:
        """Return how many events were folded."""
        return len(self._events)

    def fold(self, recorded: Recorded) -> tuple[bool, ...]:
        """Fold the frame that follows; return which of its events counted."""
        counted = []
        for entry in self._view.steps(recorded):
            self._note(entry)
            counted.append(not entry.void)
        writer = recorded.frame.writer
        if (writer.service, writer.instance) in self._view.writers:
            self._writers.add((writer.service, writer.instance))
        return tuple(counted)

    def rows(self) -> Rows:
        """Return the rows as they are now."""
        view = self._view
        allocations, gone = self._allocations()
        return Rows(
            jobs=[job_row(job) for job in self._jobs.values()],
            attempts=[attempt_row(job, attempt) for (job, _), attempt in self._attempts.items()],
            nodes=[node_row(view.nodes[name]) for name in sorted(self._nodes & view.nodes.keys())],
            gone_nodes=[(text(name),) for name in sorted(self._nodes_before - view.nodes.keys())],
            allocations=allocations,
            gone_allocations=gone,
            checkpoints=[checkpoint_row(*key, checkpoint) for key, checkpoint in self._checkpoints.items()],
            queues=[queue_row(view.queues[name]) for name in sorted(self._queues & view.queues.keys())],
            maintenance=[
                maintenance_row(view.maintenance[name]) for name in sorted(self._windows & view.maintenance.keys())
            ],
            gone_maintenance=[(text(name),) for name in sorted(self._windows_before - view.maintenance.keys())],
            writers=[writer_row(name, view.writers[name]) for name in sorted(self._writers)],
            events=self._events,
            event_blocks=[(block, low, high) for block, (low, high) in self._blocks.items()],
        )

    def _note(self, entry: Entry) -> None:
        row = event_row(entry)
        self._events.append(row)
        event = entry.event
        self.last_at_ns = event.at_ns
        at_ns = row[5]
        low, high = self._blocks.get(entry.seq // BLOCK_FRAMES, (at_ns, at_ns))
        self._blocks[entry.seq // BLOCK_FRAMES] = (min(low, at_ns), max(high, at_ns))
        if isinstance(event, e.JobEvent):
            self._note_job(event)
        elif isinstance(event, e.QueueChanged):
            self._queues.add(event.tenant)
        elif isinstance(event, e.MaintenancePlanned | e.MaintenanceCancelled):
            self._windows.add(event.name)
        node: str | None = getattr(event, "node", None)
        if node is not None and node in self._view.nodes:
            self._nodes.add(node)
            if isinstance(event, e.NodeJoined | e.NodeLost) and not entry.void:
                self._touch(self._view.jobs_on(node))

    def _note_job(self, event: e.JobEvent) -> None:
        job = self._view.jobs.get(event.job)
        if job is None:
            return
        self._touch([job])
        if isinstance(event, e.JobPlaced | e.QuotaChanged) and job.latest is not None:
            places = {member.placement.node for member in job.latest.members}
            self._nodes.update(places & self._view.nodes.keys())
        if isinstance(event, _ON_CHECKPOINTS):
            named = event.checkpoint.id if isinstance(event, e.CheckpointSaved) else event.checkpoint_id
            for index, checkpoint in enumerate(job.checkpoints):
                if checkpoint.ref.id == named:
                    self._checkpoints[(job.id, job.checkpoints_dropped + index)] = checkpoint

    def _touch(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self._jobs[job.id] = job
            if job.latest is not None:
                self._attempts[(job.id, job.latest.number)] = job.latest

    def _allocations(self) -> tuple[list[Row], list[Row]]:
        """Return the rows to write and the keys of those to delete, and note the first as written."""
        written: list[Row] = []
        gone: list[Row] = []
        for name in sorted(self._nodes_before - self._view.nodes.keys()):
            gone += [row[:4] for row in self._held.pop(name, {}).values()]
        for name in sorted(self._nodes & self._view.nodes.keys()):
            node = self._view.nodes[name]
            now = {key: allocation_row(name, key, hold) for key, hold in node.holds.items()}
            before = self._held.get(name, {})
            written += [row for key, row in now.items() if before.get(key) != row]
            gone += [row[:4] for key, row in before.items() if key not in now]
            self._held[name] = now
        return written, gone
