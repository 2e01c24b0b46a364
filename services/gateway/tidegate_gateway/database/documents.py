"""The documents in the rows: what the view holds, as JSON, such that reading it back gives the same view."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from tidegate_events.events import AnyEvent
from tidegate_events.frame import Writer
from tidegate_events.spec import JobSpec

from tidegate_gateway.view.model import Attempt, Checkpoint, Entry, Job, Maintenance, Node, Progress, Queue, Timeline

_APART = frozenset({"id", "tenant", "spec", "attempts", "checkpoints", "timeline"})
"""What of a job has columns or tables of its own."""
_FIELDS = [field for field in msgspec.structs.fields(Job) if field.name not in _APART]


def _with_default(field: Any) -> tuple[str, Any] | tuple[str, Any, Any]:
    if field.default is not msgspec.NODEFAULT:
        return (field.name, field.type, field.default)
    if field.default_factory is not msgspec.NODEFAULT:
        return (field.name, field.type, msgspec.field(default_factory=field.default_factory))
    return (field.name, field.type)


_JobDocument = msgspec.defstruct("_JobDocument", [_with_default(field) for field in _FIELDS], kw_only=True)

T = TypeVar("T")

_encoder = msgspec.json.Encoder()
_job: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_JobDocument)
_spec = msgspec.json.Decoder(JobSpec)
_attempt = msgspec.json.Decoder(Attempt)
_checkpoint = msgspec.json.Decoder(Checkpoint)
_node = msgspec.json.Decoder(Node)
_queue = msgspec.json.Decoder(Queue)
_maintenance = msgspec.json.Decoder(Maintenance)
_event: msgspec.json.Decoder[Any] = msgspec.json.Decoder(AnyEvent)
_progress = msgspec.json.Decoder(Progress)


class UnreadableRowError(Exception):
    """A row holds what this program did not write; the remedy is to project again."""


def dump(value: Any) -> str:
    """Return a struct or plain value as JSON."""
    return _encoder.encode(value).decode()


def dump_job(job: Job) -> str:
    """Return what of a job has no columns of its own."""
    return dump({field.name: getattr(job, field.name) for field in _FIELDS})


def dump_node(node: Node) -> str:
    """Return a node without what it holds, which has a table of its own."""
    return dump(msgspec.structs.replace(node, holds={}))


def job_of(row: Any, attempts: list[Attempt], checkpoints: list[Checkpoint], timeline: Timeline) -> Job:
    """Return the job of a row (job_id, tenant, spec, doc). Raises UnreadableRowError."""
    document = _read(_job, row["doc"])
    return Job(
        id=row["job_id"],
        tenant=row["tenant"],
        spec=_read(_spec, row["spec"]),
        attempts=attempts,
        checkpoints=checkpoints,
        timeline=timeline,
        **{field.name: getattr(document, field.name) for field in _FIELDS},
    )


def attempt_of(doc: str) -> Attempt:
    """Return an attempt. Raises UnreadableRowError."""
    return _read(_attempt, doc)


def checkpoint_of(doc: str) -> Checkpoint:
    """Return a checkpoint. Raises UnreadableRowError."""
    return _read(_checkpoint, doc)


def node_of(doc: str) -> Node:
    """Return a node that holds nothing yet. Raises UnreadableRowError."""
    return _read(_node, doc)


def queue_of(doc: str) -> Queue:
    """Return a tenant's queue. Raises UnreadableRowError."""
    return _read(_queue, doc)


def maintenance_of(doc: str) -> Maintenance:
    """Return a maintenance window. Raises UnreadableRowError."""
    return _read(_maintenance, doc)


def progress_of(doc: str) -> Progress:
    """Return where a fold stood. Raises UnreadableRowError."""
    return _read(_progress, doc)


def entry_of(row: Any) -> Entry:
    """Return the event of a row. Raises UnreadableRowError."""
    event = _read(_event, row["doc"])
    writer = Writer(row["service"], row["instance"], row["epoch"], row["writer_seq"])
    return Entry(row["seq"], row["index"], event, writer, row["void"])


def _read(decoder: msgspec.json.Decoder[T], text: str) -> T:
    try:
        return decoder.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UnreadableRowError(f"a row cannot be read: {error}; it begins {text[:80]!r}") from error
