"""Plans to restore: which checkpoint, from which tier, and which layers in which order.

Pure: it takes what the catalogue and the root on disk say. What cannot be restored is refused, with what can.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from tidegate.checkpoint import root as roots

from tidegate_checkpoint.catalogue import Entry, JobRecord

# The state says where everything else stands; an optimizer is built on the model's parameters; experience is read last,
# since it is the largest and nothing waits for it.
RESTORE_ORDER = ("state", "model", "optimizer", "experience")
NAMED_MAX = 20


class RefusedError(Exception):
    """A question that cannot be answered; `accepted` is what could be asked instead."""

    def __init__(self, code: str, why: str, accepted: Sequence[str] = ()) -> None:
        super().__init__(why)
        self.code = code
        self.accepted = list(accepted)


class Skipped(msgspec.Struct, frozen=True):
    """A newer checkpoint that was passed over."""

    id: str
    step: int
    why: str


def known_job(record: JobRecord | None, job: str) -> JobRecord:
    """Return the record; raise RefusedError where there is none with checkpoints."""
    if record is None or not record.entries:
        raise RefusedError("NoCheckpoint", f"job {job!r} has no checkpoint in the catalogue")
    return record


def candidates(record: JobRecord, job: str, checkpoint_id: str | None) -> list[Entry]:
    """Return what to restore from, best first: verified ones, newest first, and then those not yet read back.

    A named checkpoint is the only candidate. Raises RefusedError for one that is unknown or broken.
    """
    ordered = record.newest_first()
    usable = [entry for entry in ordered if entry.status != "failed"]
    if checkpoint_id is None:
        if not usable:
            why = ordered[0].failure
            raise RefusedError("NoCheckpoint", f"no checkpoint of job {job!r} is whole: {why.detail if why else ''}")
        return sorted(usable, key=lambda entry: (entry.saved.rank, entry.status != "verified"))
    named = record.entries.get(checkpoint_id)
    if named is None:
        raise RefusedError(
            "UnknownCheckpoint",
            f"job {job!r} has no checkpoint {checkpoint_id!r}",
            [entry.id for entry in usable[:NAMED_MAX]],
        )
    if named.failure is not None:
        raise RefusedError(
            "BrokenCheckpoint",
            f"checkpoint {checkpoint_id} did not verify: {named.failure.detail} ({named.failure.code})",
            [entry.id for entry in usable[:NAMED_MAX]],
        )
    return [named]


def skipped_before(record: JobRecord, chosen: Entry) -> list[Skipped]:
    """Return the newer checkpoints of the same rank that were passed over, and why."""
    passed = []
    for entry in record.newest_first():
        if entry.saved.rank != chosen.saved.rank or entry.age_key <= chosen.age_key:
            continue
        why = f"{entry.failure.code}: {entry.failure.detail}" if entry.failure else "not verified yet, or gone"
        passed.append(Skipped(entry.id, entry.saved.checkpoint.step, why))
    return passed[:NAMED_MAX]


def plan(entry: Entry, root: roots.Root, layers: Sequence[str], tier: str) -> dict[str, Any]:
    """Return the plan to restore `layers` (all where none is named), in the order they depend on each other.

    `tier` is the nearest that has it, `store` is relative to that, `root` names the root in it; a layer's digest is the
    id of its manifest, which says what it consists of; sizes are bytes. Raises RefusedError for a layer that is not
    held.
    """
    held = [name for name in RESTORE_ORDER if root.layer(name) is not None]
    unknown = sorted(set(layers) - set(held))
    if unknown:
        raise RefusedError(
            "UnknownLayer",
            f"checkpoint {entry.id} holds no layer {', '.join(map(repr, unknown))}: it holds {', '.join(held)}",
            held,
        )
    wanted = [root.layer(name) for name in held if not layers or name in layers]
    chosen = [layer for layer in wanted if layer is not None]
    saved = entry.saved
    return {
        "job_id": saved.job,
        "tenant": saved.tenant,
        "checkpoint_id": entry.id,
        "step": saved.checkpoint.step,
        "attempt": saved.checkpoint.attempt,
        "rank": saved.rank,
        "node": saved.node,
        "status": entry.status,
        "tier": tier,
        "store": f"{saved.tenant}/{saved.job}",
        "root": saved.checkpoint.directory,
        "size_bytes": sum(layer.bytes for layer in chosen),
        "layers": [_layer(layer) for layer in chosen],
    }


def _layer(layer: roots.LayerEntry) -> dict[str, Any]:
    return {
        "name": layer.name,
        "kind": layer.kind,
        "digest": layer.manifest,
        "size_bytes": layer.bytes,
        "pack_count": len(layer.packs),
    }
