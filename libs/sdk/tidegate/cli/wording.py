"""Says in words what each event of a job's timeline means; an unknown kind is shown as it is, never left out."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tidegate.cli import asking, lending, text

Entry = dict[str, Any]
DATA_CHARS_MAX = 200


def sentence(entry: Entry) -> str:
    """Return one line about the entry, without its time."""
    words = _WORDS.get(entry["kind"], _unknown)(entry, entry.get("data") or {})
    why = text.reasons(entry.get("reasons"))
    return f"{words}  — {why}" if why else words


def _unknown(entry: Entry, data: dict[str, Any]) -> str:
    return f"{entry['kind']} {json.dumps(data, sort_keys=True)[:DATA_CHARS_MAX]}" if data else str(entry["kind"])


def _placed(entry: Entry, data: dict[str, Any]) -> str:
    members = data.get("members") or []
    where = ", ".join(f"{_member(members, one)} {quotas_in_words(one.get('quotas'))}" for one in members)
    resume = data.get("resume")
    again = f", to continue from step {resume['step']}" if resume else ""
    return f"attempt {entry.get('attempt')} placed on {where}{again}"


def _member(members: list[dict[str, Any]], one: dict[str, Any]) -> str:
    return str(one["node"]) if len(members) == 1 else f"{one['node']} (rank {one['rank']})"


def quotas_in_words(quotas: list[dict[str, Any]] | None) -> str:
    """Return the limits of each component, per replica."""
    shown = ", ".join(
        f"{one['component']} {text.cpus(one['cpu_millis'])} CPU {text.mib(one['memory_mib'])}{_replicas(one)}"
        for one in quotas or []
    )
    return f"[{shown}]"


def _replicas(quota: dict[str, Any]) -> str:
    return f" x{quota['replicas']}" if quota.get("replicas") is not None else ""


def _started_sandbox(entry: Entry, data: dict[str, Any]) -> str:
    took = f" in {data['start_ms']} ms" if data.get("start_ms") else ""
    return f"sandbox started on {entry.get('node')}, level {data.get('level', '?')}{took}"


def _resumed(entry: Entry, data: dict[str, Any]) -> str:
    return f"resumed from checkpoint {short(data.get('checkpoint_id', ''))} at step {data.get('step')}"


def _phase(entry: Entry, data: dict[str, Any]) -> str:
    at = f" at step {data['step']}" if data.get("step") is not None else ""
    return f"phase {data.get('phase')}{at}{_rank(entry)}"


def _rank(entry: Entry) -> str:
    return f" (rank {entry['rank']})" if entry.get("rank") else ""


def _quota_changed(entry: Entry, data: dict[str, Any]) -> str:
    return f"quota shall be {quotas_in_words(data.get('quotas'))}{lending.terms(data)}{_rank(entry)}"


def _quota_applied(entry: Entry, data: dict[str, Any]) -> str:
    how = "kernel enforces" if data.get("enforced", True) else "told, but not enforced on this node:"
    return f"{how} {quotas_in_words(data.get('quotas'))}{_rank(entry)}"


def _preempt(entry: Entry, data: dict[str, Any]) -> str:
    for_whom = f", for {data['for_job']}" if data.get("for_job") else ""
    held = ", and is held then" if data.get("hold") else ""
    return f"asked to save and leave within {data.get('grace_seconds')} s{for_whom}{held}"


def _stop(entry: Entry, data: dict[str, Any]) -> str:
    return f"asked to end within {data.get('grace_seconds')} s"


def _saved(entry: Entry, data: dict[str, Any]) -> str:
    checkpoint = data.get("checkpoint") or {}
    layers = checkpoint.get("layers") or []
    total = text.size(sum(layer["size_bytes"] for layer in layers))
    names = ", ".join(layer["name"] for layer in layers)
    return f"checkpoint {short(checkpoint.get('id', ''))} saved at step {checkpoint.get('step')} ({names}: {total})"


def _verified(entry: Entry, data: dict[str, Any]) -> str:
    whole = text.size(data.get("size_bytes", 0))
    return f"checkpoint {short(data.get('checkpoint_id', ''))} verified, {whole} read back"


def _checkpoint_failed(entry: Entry, data: dict[str, Any]) -> str:
    why = text.reason(data["reason"]) if data.get("reason") else "no reason given"
    what = "could not be saved" if data.get("stage") == "save" else "did not verify"
    return f"checkpoint {short(data.get('checkpoint_id', ''))} {what}: {why}"


def _part_saved(entry: Entry, data: dict[str, Any]) -> str:
    part = data.get("part") or {}
    ranks = ", ".join(str(rank) for rank in data.get("ranks", ()))
    return f"part {short(part.get('id', ''))} of the checkpoint at step {part.get('step')} stored (ranks {ranks})"


def _part_failed(entry: Entry, data: dict[str, Any]) -> str:
    why = text.reason(data["reason"]) if data.get("reason") else "no reason given"
    return f"rank {data.get('rank')} has no part in the checkpoint at step {data.get('step')}: {why}"


def _rate(entry: Entry, data: dict[str, Any]) -> str:
    steps, target = (data.get(name, 0) / 1000 for name in ("rate_millis", "target_millis"))
    how = "below" if entry["kind"] == "StepRateLow" else "back above"
    over = f" over {data['window_seconds']} s" if data.get("window_seconds") else ""
    return f"step rate {how} its target: {steps:g} of {target:g} steps/s{over}"


def _progress(entry: Entry, data: dict[str, Any]) -> str:
    at = f" at step {data['step']}" if data.get("step") is not None else ""
    return f"{data.get('progress_millis', 0) / 10:g}% done{at}{_rank(entry)}"


def _joined(entry: Entry, data: dict[str, Any]) -> str:
    has = data.get("capacity") or {}
    room = f"{text.cpus(has.get('cpu_millis', 0))} CPU {text.mib(has.get('memory_mib', 0))}"
    gpus = f" {has['gpus']} GPU" if has.get("gpus") else ""
    held = f", still holds {len(data['sandboxes'])} sandboxes" if data.get("sandboxes") else ""
    levels = ", ".join(data.get("levels") or []) or "none"
    passing = data.get("gpu_levels")
    levels += f" (GPUs at {', '.join(passing) or 'none'})" if passing is not None else ""
    where = f", at {place}" if (place := text.place(data)) else ""
    return f"node joined with {room}{gpus}, levels {levels}{where}{held}"


def _pass(entry: Entry, data: dict[str, Any]) -> str:
    return f"pass on the state after {data.get('at_seq')}: {data.get('decisions')} decisions"


def _policy(entry: Entry, data: dict[str, Any]) -> str:
    return f"policy {data.get('policy')} from here on: {text.amounts(data.get('parameters') or {})}"


def _exited(entry: Entry, data: dict[str, Any]) -> str:
    parts = [f"sandbox ended on {entry.get('node')}: {data.get('outcome')}"]
    parts += [f"exit code {data['exit_code']}"] if data.get("exit_code") is not None else []
    parts += [f"signal {data['signal']}"] if data.get("signal") is not None else []
    parts += ["out of memory"] if data.get("oom") else []
    parts += [f"last step {data['last_step']}"] if data.get("last_step") is not None else []
    parts += [str(data["detail"])] if data.get("detail") else []
    return ", ".join(parts) + _rank(entry)


def _suspended(entry: Entry, data: dict[str, Any]) -> str:
    at = f" at step {data['step']}" if data.get("step") is not None else ""
    how = "by its own word" if data.get("acknowledged") else "without acknowledging"
    return f"suspended{at}, {how}{_lost(data)}"


def _lost(data: dict[str, Any]) -> str:
    return f", {data['lost_steps']} steps lost" if data.get("lost_steps") else ", no step lost"


def _requeued(entry: Entry, data: dict[str, Any]) -> str:
    return f"back to the queue: attempt {entry.get('attempt')} ended {data.get('outcome')}{_lost(data)}"


def _completed(entry: Entry, data: dict[str, Any]) -> str:
    result = text.amounts(data.get("result") or {})
    return f"completed: {result}" if result else "completed"


def _failed(entry: Entry, data: dict[str, Any]) -> str:
    parts = [f"exit code {data['exit_code']}"] if data.get("exit_code") is not None else []
    parts += [f"signal {data['signal']}"] if data.get("signal") is not None else []
    parts += ["out of memory"] if data.get("oom") else []
    parts += [f"{data['lost_steps']} steps lost"] if data.get("lost_steps") else []
    return ", ".join(["failed", *parts])


def _rejected_placement(entry: Entry, data: dict[str, Any]) -> str:
    why = text.reason(data["reason"]) if data.get("reason") else "no reason given"
    return f"{entry.get('node')} could not take it: {why}"


def _images(entry: Entry, data: dict[str, Any]) -> str:
    parts = [f"has the images {', '.join(sorted(data.get('images') or {})) or 'none'}"]
    parts += [f"cannot get {', '.join(data['unavailable'])}"] if data.get("unavailable") else []
    return ", ".join(parts)


def short(checkpoint_id: str) -> str:
    """Return the beginning of a digest, enough for people."""
    return checkpoint_id.partition(":")[2][:12] or checkpoint_id[:12] or "?"


_WORDS: dict[str, Callable[[Entry, dict[str, Any]], str]] = {
    "JobSubmitted": lambda entry, data: "submitted",
    "JobRejected": lambda entry, data: "rejected: it can never run here",
    "CancelRequested": lambda entry, data: f"cancel requested by {data.get('actor') or 'somebody'}",
    **asking.WORDS,
    **lending.WORDS,
    "JobPlaced": _placed,
    "PlacementRejected": _rejected_placement,
    "SandboxStarted": _started_sandbox,
    "SandboxExited": _exited,
    "JobStarted": lambda entry, data: "running",
    "JobResumed": _resumed,
    "PhaseChanged": _phase,
    "ProgressReported": _progress,
    "QuotaChanged": _quota_changed,
    "QuotaApplied": _quota_applied,
    "RoomReserved": lambda entry, data: (
        f"room reserved on {', '.join(data['nodes'])}" if data.get("nodes") else "gives back the room reserved for it"
    ),
    "PreemptRequested": _preempt,
    "StopRequested": _stop,
    "CheckpointSaved": _saved,
    "CheckpointVerified": _verified,
    "CheckpointFailed": _checkpoint_failed,
    "CheckpointPartSaved": _part_saved,
    "CheckpointPartFailed": _part_failed,
    "CheckpointPartPromoted": lambda entry, data: (
        f"part {short(data.get('part_id', ''))} is in the {data.get('tier')} tier"
    ),
    "StepRateLow": _rate,
    "StepRateRecovered": _rate,
    "NodeJoined": _joined,
    "NodeImagesChanged": _images,
    "ImageCached": lambda entry, data: f"has the image {data.get('image')} now",
    "ImageEvicted": lambda entry, data: f"has the image {data.get('image')} no more",
    "ImageUnavailable": lambda entry, data: f"cannot get the image {data.get('image')}; its agent's log says why",
    "NodeUnreachable": lambda entry, data: "no heartbeat: nothing new is placed there",
    "NodeReachable": lambda entry, data: "heartbeats are back",
    "NodeLost": lambda entry, data: "node lost: what ran there counts as lost",
    "NodeForgotten": lambda entry, data: f"{entry.get('node')} was lost for so long that nothing is kept of it",
    "NodeCordoned": lambda entry, data: f"{entry.get('node')} keeps failing jobs: nothing new is placed there",
    "ImagePrefetchHinted": lambda entry, data: f"image {data.get('image')} will probably be needed there next",
    "GenerationOpened": lambda entry, data: (
        f"the journal goes on in generation {data.get('generation')}; {data.get('sealed_frames')} frames are sealed"
    ),
    "LeaderElected": lambda entry, data: f"{data.get('instance')} leads, epoch {data.get('epoch')}",
    "PolicyChanged": _policy,
    "DecisionPass": _pass,
    "JobSuspended": _suspended,
    "JobRequeued": _requeued,
    "JobCompleted": _completed,
    "JobFailed": _failed,
    "JobCancelled": lambda entry, data: "cancelled",
}
