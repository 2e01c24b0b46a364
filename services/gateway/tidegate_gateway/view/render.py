"""The JSON form of the read model; docs/reference/http-api.md describes it for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from tidegate_events import events as e
from tidegate_events import trace
from tidegate_events.events import Quota, Reason
from tidegate_events.resources import Resources

from tidegate_gateway.view.cluster import replicas_of
from tidegate_gateway.view.model import Act, Attempt, Checkpoint, Entry, Exit, Job, Maintenance, Member, Node, Queue
from tidegate_gateway.view.plain import plain
from tidegate_gateway.view.projection import View
from tidegate_gateway.view.usage import Usage

Document = dict[str, Any]

_ENVELOPE = frozenset({"id", "at_ns", "v", "cause", "kind", "tenant", "job", "traceparent"})
_LIFTED = frozenset({"attempt", "rank", "node", "reasons"})


def summary(job: Job) -> Document:
    """Return the line of a job in a list."""
    first = _first_member(job)
    running_ms = None if job.started_at_ns is None else max(0, job.started_at_ns - job.submitted_at_ns) // 1_000_000
    return {
        "job_id": job.id,
        "trace_id": trace.trace_id(job.id),
        "tenant": job.tenant,
        "submitter": job.spec.submitter,
        "name": job.spec.name,
        "type": job.spec.type,
        "state": job.state,
        "priority": job.priority,
        "isolation": job.spec.isolation,
        "gang_size": job.spec.gang_size,
        "attempt": job.attempt,
        "nodes": _nodes_of(job),
        "phase": first.phase if first else None,
        "step": first.step if first else None,
        "progress_millis": first.progress_millis if first else None,
        "preemptions": job.preemptions,
        "resumed_step": job.resumed_step,
        "lost_steps": job.lost_steps,
        "cancel_requested": job.cancel_requested,
        "held": job.held,
        "suspend_requested": job.suspend_requested,
        "requeue_requested": job.requeue_requested,
        "asked": _act(job.asked) if job.asked else None,
        "time_limit_seconds": job.time_limit_seconds,
        "submitted_at_ns": job.submitted_at_ns,
        "started_at_ns": job.started_at_ns,
        "ended_at_ns": job.ended_at_ns,
        "submit_to_running_ms": running_ms,
        "labels": job.spec.labels,
        "reasons": [reason(each) for each in job.reasons],
        "result": job.result,
    }


def detail(job: Job) -> Document:
    """Return all that is known of a job."""
    newest = job.checkpoints[-1] if job.checkpoints else None
    return {
        **summary(job),
        "traceparent": trace.traceparent(job.id),
        "revision": job.revision,
        "spec": plain(job.spec),
        "attempts": [attempt(job, each) for each in job.attempts],
        "attempts_dropped": job.attempts_dropped,
        "checkpoint": checkpoint(newest) if newest else None,
        "checkpoints": len(job.checkpoints) + job.checkpoints_dropped,
        "exit": _exit_of(job),
        "timeline": timeline(job),
    }


def timeline(job: Job) -> Document:
    """Return the job's kept events, and how many were dropped between the first and the newest."""
    return {"events": [entry(each) for each in job.timeline.entries()], "dropped": job.timeline.dropped}


def entry(item: Entry) -> Document:
    """Return an event of a timeline; the specification is left out, because the job shows it once."""
    event = item.event
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    shown: Document = {
        "seq": item.seq,
        "index": item.index,
        "at_ns": event.at_ns,
        "kind": type(event).__name__,
        "void": item.void,
    }
    for name in ("attempt", "rank", "node"):
        if name in fields:
            shown[name] = fields[name]
    if "reasons" in fields:
        shown["reasons"] = [reason(each) for each in fields["reasons"]]
    # What is about no job may name a tenant of its own accord.
    envelope = _ENVELOPE if isinstance(event, e.JobEvent) else _ENVELOPE - {"tenant"}
    shown["data"] = {
        name: plain(value)
        for name, value in fields.items()
        if name not in envelope and name not in _LIFTED and name != "spec"
    }
    return shown


def history_entry(item: Entry) -> Document:
    """Return an event of the journal, with its envelope."""
    shown = entry(item)
    if isinstance(item.event, e.JobEvent):
        shown["job_id"], shown["tenant"] = item.event.job, item.event.tenant
    shown["id"], shown["cause"] = item.event.id, item.event.cause
    shown["writer"] = msgspec.to_builtins(item.writer)
    return shown


def attempt(job: Job, item: Attempt) -> Document:
    """Return one try to run a job."""
    resumed = {"checkpoint_id": item.resume.id, "step": item.resume.step} if item.resume else None
    return {
        "attempt": item.number,
        "state": item.state,
        "placed_at_ns": item.placed_at_ns,
        "started_at_ns": item.started_at_ns,
        "ended_at_ns": item.ended_at_ns,
        "resumed_from": resumed,
        "lost_steps": item.lost_steps,
        "outcome": item.outcome,
        "members": [_member(job, each) for each in item.members],
    }


def checkpoint(item: Checkpoint) -> Document:
    """Return one checkpoint of a job."""
    return {
        "id": item.ref.id,
        "step": item.ref.step,
        "attempt": item.ref.attempt,
        "rank": item.rank,
        "node": item.node,
        "directory": item.ref.directory,
        "tier": item.tier,
        "status": item.status,
        "size_bytes": sum(layer.size_bytes for layer in item.ref.layers),
        "layers": [msgspec.to_builtins(layer) for layer in item.ref.layers],
        "saved_at_ns": item.saved_at_ns,
        "seq": item.seq,
        "failure": reason(item.failure) if item.failure else None,
    }


def node(item: Node, why_unavailable: Reason | None = None, windows: Sequence[Maintenance] = ()) -> Document:
    """Return a node, what it offers and holds, what is planned there, and why nothing is placed there if so."""
    allocated = Resources()
    for held in item.holds.values():
        if held.sandbox != "lost":
            allocated = allocated.plus(held.amount)
    return {
        "node": item.name,
        "incarnation": item.incarnation,
        "state": item.state,
        "reachable": item.state == "reachable",
        "capacity": plain(item.capacity),
        "allocated": plain(allocated),
        "levels": list(item.levels),
        "gpu_levels": list(item.levels if item.gpu_levels is None else item.gpu_levels) if item.capacity.gpus else [],
        "images": item.images,
        "gpus": [msgspec.structs.asdict(gpu) for gpu in item.gpus],
        "cpu_model": item.cpu_model,
        "isa": item.isa,
        "rack": item.rack,
        "switch": item.switch,
        "joined_at_ns": item.joined_at_ns,
        "state_since_ns": item.state_since_ns,
        "drain": msgspec.structs.asdict(item.drain) if item.drain else None,
        "cordoned": [reason(each) for each in item.cordoned],
        "cordoned_ns": item.cordoned_ns or None,
        "maintenance": [{"name": each.name, "start_ns": each.start_ns, "end_ns": each.end_ns} for each in windows],
        "reason": reason(why_unavailable) if why_unavailable else None,
        "sandboxes": [
            {"job_id": job, "tenant": held.tenant, "attempt": number, "rank": rank, "sandbox": held.sandbox}
            for (job, number, rank), held in sorted(item.holds.items())
        ],
    }


def maintenance(item: Maintenance, now_ns: int) -> Document:
    """Return a maintenance window."""
    state = "ahead" if now_ns < item.start_ns else "goes_on"
    if item.is_over(now_ns):
        state = "cancelled" if item.cancelled else "over"
    return {
        "name": item.name,
        "nodes": list(item.nodes),
        "start_ns": item.start_ns,
        "end_ns": item.end_ns,
        "state": state,
        "actor": item.actor,
        "note": item.note,
        "planned_ns": item.planned_ns,
        "cancelled_by": item.cancelled_by or None,
    }


def queue(item: Queue, used: Usage) -> Document:
    """Return a tenant's queue, and what the tenant uses."""
    return {
        "tenant": item.tenant,
        "weight": item.weight,
        "guaranteed": _bounds(item.guaranteed),
        "ceiling": _bounds(item.ceiling),
        "stopped": item.stopped,
        "used": plain(used.amount),
        "running": used.running,
        "waiting": used.waiting,
        "held": used.held,
        "actor": item.actor or None,
        "note": item.note or None,
        "changed_ns": item.changed_ns,
    }


def services(view: View) -> list[Document]:
    """Return every writer that the journal has seen."""
    return [
        {
            "service": service,
            "instance": instance,
            "epoch": seen.epoch,
            "last_seq": seen.last_seq,
            "last_at_ns": seen.last_at_ns,
        }
        for (service, instance), seen in sorted(view.writers.items())
    ]


def reason(item: Reason) -> Document:
    """Return a reason with all its fields."""
    return {"code": item.code, "detail": item.detail, "numbers": item.numbers}


def _act(item: Act) -> Document:
    return msgspec.structs.asdict(item)


def _bounds(item: Resources | None) -> Document | None:
    return None if item is None else {name: getattr(item, name) for name in ("cpu_millis", "memory_mib", "gpus")}


def _member(job: Job, item: Member) -> Document:
    return {
        "rank": item.placement.rank,
        "node": item.placement.node,
        "gpu_indices": list(item.placement.gpu_indices),
        "sandbox": item.sandbox,
        "level": item.level,
        "image_digest": item.image_digest,
        "start_ms": item.start_ms,
        "phase": item.phase,
        "step": item.step,
        "progress_millis": item.progress_millis,
        "quotas": [
            {
                "component": name,
                "replicas": replicas_of(job, quota),
                "desired": _limits(quota),
                "observed": _limits(item.observed[name]) if name in item.observed else None,
                "enforced": item.enforced if name in item.observed else None,
            }
            for name, quota in item.desired.items()
        ],
        "exit": _exit(item.exit) if item.exit else None,
    }


def _limits(quota: Quota) -> Document:
    return {"cpu_millis": quota.cpu_millis, "memory_mib": quota.memory_mib}


def _exit(item: Exit) -> Document:
    return msgspec.structs.asdict(item)


def _exit_of(job: Job) -> Document | None:
    """Return how the newest attempt ended: the first member that failed, else rank 0."""
    exits = [member.exit for member in job.latest.members if member.exit] if job.latest else []
    telling = next((each for each in exits if each.outcome == "failed"), exits[0] if exits else None)
    return _exit(telling) if telling else None


def _first_member(job: Job) -> Member | None:
    latest = job.latest
    if latest is None:
        return None
    return next((member for member in latest.members if member.placement.rank == 0), None)


def _nodes_of(job: Job) -> list[str]:
    if job.latest is None or job.waiting:
        return []
    return sorted({member.placement.node for member in job.latest.members})
