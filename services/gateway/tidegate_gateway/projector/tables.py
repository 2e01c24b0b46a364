"""The tables of a generation as the projector writes them: columns, and a row for each thing of the view. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from tidegate_events.events import Event, JobEvent
from tidegate_events.resources import Resources

from tidegate_gateway.database.columns import big, big_or_none, moment, small, text
from tidegate_gateway.database.documents import dump, dump_job, dump_node
from tidegate_gateway.view.model import (
    Attempt,
    Checkpoint,
    Entry,
    Hold,
    Job,
    Maintenance,
    Member,
    Node,
    Queue,
    WriterSeen,
)

Row = tuple[Any, ...]
Key = tuple[str, int, int]

BLOCK_FRAMES = 1024
"""As in the migration: how many frames share one row of `event_blocks`."""


class Table(msgspec.Struct, frozen=True):
    """A table: its columns in the order of its rows, the first `key_columns` of which are its key."""

    name: str
    key_columns: int
    columns: tuple[str, ...]

    def upsert(self, schema: str) -> str:
        """Return the statement that puts a row in place, whether it was there or not."""
        keys, rest = self.columns[: self.key_columns], self.columns[self.key_columns :]
        values = ", ".join(f"${number}" for number in range(1, len(self.columns) + 1))
        changes = ", ".join(f"{column} = EXCLUDED.{column}" for column in rest)
        return (
            f"INSERT INTO {schema}.{self.name} ({', '.join(self.columns)}) VALUES ({values})"
            f" ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {changes}"
        )


def _table(name: str, key_columns: int, columns: str) -> Table:
    return Table(name, key_columns, tuple(columns.split()))


JOBS = _table(
    "jobs",
    1,
    "job_id tenant submitter name type state priority isolation gang_size attempt nodes phase step preemptions"
    " resumed_step lost_steps cancel_requested reason submitted_at started_at ended_at submitted_seq ended_order"
    " events spec_digest labels result spec doc held suspend_requested requeue_requested asked_by asked_why"
    " progress_millis",
)
ATTEMPTS = _table(
    "attempts",
    2,
    "job_id attempt state nodes placed_at started_at ended_at outcome resumed_checkpoint resumed_step lost_steps doc",
)
NODES = _table(
    "nodes",
    1,
    "node state incarnation cpu_millis memory_mib gpus levels cpu_model isa joined_at doc rack switch drain_deadline"
    " drained_by cordoned",
)
ALLOCATIONS = _table(
    "allocations",
    4,
    "node job_id attempt rank tenant sandbox cpu_millis memory_mib gpus gpu_memory_mib gpu_millis",
)
CHECKPOINTS = _table(
    "checkpoints",
    2,
    "job_id ordinal checkpoint_id rank attempt step node tier status size_bytes saved_at doc",
)
QUEUES = _table(
    "queues",
    1,
    "tenant weight stopped guaranteed_cpu_millis guaranteed_memory_mib guaranteed_gpus ceiling_cpu_millis"
    " ceiling_memory_mib ceiling_gpus changed_by changed_why changed_at doc",
)
MAINTENANCE = _table("maintenance", 1, "name nodes start_at end_at cancelled planned_by planned_why planned_at doc")
WRITERS = _table("writers", 2, "service instance epoch writer_seq last_seq last_at_ns")
EVENTS = _table(
    "events",
    2,
    "seq index id kind void at_ns tenant job_id attempt rank node service instance epoch writer_seq doc",
)


def job_row(job: Job) -> Row:
    """Return a job's row."""
    latest = job.latest
    first = _rank_zero(latest.members) if latest is not None else None
    spec = job.spec
    return (
        text(job.id),
        text(job.tenant),
        text(spec.submitter),
        text(spec.name),
        text(spec.type),
        job.state,
        small(job.priority),
        text(spec.isolation),
        small(spec.gang_size),
        small(job.attempt),
        _nodes_of(latest.members) if latest is not None and not job.waiting else [],
        text(first.phase) if first else None,
        big_or_none(first.step) if first else None,
        job.preemptions,
        big_or_none(job.resumed_step),
        big(job.lost_steps),
        job.cancel_requested,
        text(job.reasons[0].code) if job.reasons else None,
        moment(job.submitted_at_ns),
        moment(job.started_at_ns),
        moment(job.ended_at_ns),
        job.submitted_seq,
        job.ended_order,
        job.events,
        job.spec_digest,
        dump(spec.labels),
        dump(job.result),
        dump(spec),
        dump_job(job),
        job.held,
        job.suspend_requested,
        job.requeue_requested,
        text(job.asked.actor) if job.asked else None,
        text(job.asked.note) if job.asked else None,
        first.progress_millis if first else None,
    )


def attempt_row(job_id: str, attempt: Attempt) -> Row:
    """Return the row of one try to run a job."""
    return (
        text(job_id),
        small(attempt.number),
        attempt.state,
        _nodes_of(attempt.members),
        moment(attempt.placed_at_ns),
        moment(attempt.started_at_ns),
        moment(attempt.ended_at_ns),
        attempt.outcome,
        text(attempt.resume.id) if attempt.resume else None,
        big(attempt.resume.step) if attempt.resume else None,
        big(attempt.lost_steps),
        dump(attempt),
    )


def node_row(node: Node) -> Row:
    """Return a node's row."""
    return (
        text(node.name),
        node.state,
        big(node.incarnation),
        big(node.capacity.cpu_millis),
        big(node.capacity.memory_mib),
        small(node.capacity.gpus),
        [text(level) for level in node.levels],
        text(node.cpu_model),
        text(node.isa),
        moment(node.joined_at_ns),
        dump_node(node),
        text(node.rack),
        text(node.switch),
        moment(node.drain.deadline_ns) if node.drain else None,
        text(node.drain.actor) if node.drain else None,
        bool(node.cordoned),
    )


def allocation_row(node: str, key: Key, hold: Hold) -> Row:
    """Return the row of what one sandbox holds on a node."""
    job, attempt, rank = key
    amount = hold.amount
    return (
        text(node),
        text(job),
        small(attempt),
        small(rank),
        text(hold.tenant),
        hold.sandbox,
        big(amount.cpu_millis),
        big(amount.memory_mib),
        small(amount.gpus),
        big(amount.gpu_memory_mib),
        small(amount.gpu_millis),
    )


def checkpoint_row(job_id: str, ordinal: int, checkpoint: Checkpoint) -> Row:
    """Return a checkpoint's row."""
    ref = checkpoint.ref
    return (
        text(job_id),
        ordinal,
        text(ref.id),
        small(checkpoint.rank),
        small(ref.attempt),
        big(ref.step),
        text(checkpoint.node),
        checkpoint.tier,
        checkpoint.status,
        big(sum(layer.size_bytes for layer in ref.layers)),
        moment(checkpoint.saved_at_ns),
        dump(checkpoint),
    )


def queue_row(queue: Queue) -> Row:
    """Return the row of a tenant's queue."""
    return (
        text(queue.tenant),
        small(queue.weight),
        queue.stopped,
        *_amounts(queue.guaranteed),
        *_amounts(queue.ceiling),
        text(queue.actor),
        text(queue.note),
        moment(queue.changed_ns),
        dump(queue),
    )


def maintenance_row(window: Maintenance) -> Row:
    """Return the row of a maintenance window."""
    return (
        text(window.name),
        [text(node) for node in window.nodes],
        moment(window.start_ns),
        moment(window.end_ns),
        window.cancelled,
        text(window.actor),
        text(window.note),
        moment(window.planned_ns),
        dump(window),
    )


def _amounts(bounds: Resources | None) -> tuple[int | None, int | None, int | None]:
    if bounds is None:
        return None, None, None
    return big(bounds.cpu_millis), big(bounds.memory_mib), big(bounds.gpus)


def writer_row(name: tuple[str, str], seen: WriterSeen) -> Row:
    """Return the row of one writer's newest frame."""
    return (*map(text, name), big(seen.epoch), big(seen.writer_seq), seen.last_seq, big(seen.last_at_ns))


def event_row(entry: Entry) -> Row:
    """Return an event's row."""
    event, writer = entry.event, entry.writer
    about = event if isinstance(event, JobEvent) else None
    tenant: str | None = getattr(event, "tenant", None)
    node: str | None = getattr(event, "node", None)
    return (
        entry.seq,
        entry.index,
        text(event.id),
        type(event).__name__,
        entry.void,
        big(event.at_ns),
        text(tenant) if tenant is not None else None,
        text(about.job) if about else None,
        _small_field(event, "attempt"),
        _small_field(event, "rank"),
        text(node) if node is not None else None,
        writer.service,
        text(writer.instance),
        big(writer.epoch),
        big(writer.writer_seq),
        dump(event),
    )


def _small_field(event: Event, name: str) -> int | None:
    value: int | None = getattr(event, name, None)
    return None if value is None else small(value)


def _rank_zero(members: Iterable[Member]) -> Member | None:
    return next((member for member in members if member.placement.rank == 0), None)


def _nodes_of(members: Iterable[Member]) -> list[str]:
    return sorted({text(member.placement.node) for member in members})
