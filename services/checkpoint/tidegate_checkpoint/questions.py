"""What others may ask over the bus, and the answers: `tg.ask.checkpoint.ls` and `tg.ask.checkpoint.restore`.

A question is a JSON object and so is its answer; one that is refused has `error`, `code` and `accepted`. A question
changes nothing, and no question may end the service.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from tidegate.checkpoint import root as roots
from tidegate.errors import CheckpointError, CorruptCheckpointError
from tidegate.tiers.job import JobTier
from tidegate.tiers.tiers import HOT, Tiers

from tidegate_checkpoint import restore
from tidegate_checkpoint.catalogue import Entry
from tidegate_checkpoint.fold import Fold
from tidegate_checkpoint.hot import (
    CheckpointGoneError,
    HotTier,
    NotIntactError,
    TierUnavailableError,
    as_reported,
    read_root,
)
from tidegate_checkpoint.restore import RefusedError

LS_SUBJECT = "tg.ask.checkpoint.ls"
RESTORE_SUBJECT = "tg.ask.checkpoint.restore"
LISTED_MAX = 200
REFUSAL_CHARS_MAX = 4000
CANDIDATES_MAX = 10
"""How many roots a plan may look at before it gives up."""


class LsQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which checkpoints does a job have?"""

    job: str


class RestoreQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How are these layers (all, where none is named) of a checkpoint (the best one) taken back?"""

    job: str
    layers: tuple[str, ...] = ()
    checkpoint_id: str | None = None


Question = TypeVar("Question", bound=msgspec.Struct)


class Answers:
    """Answers from the catalogue and, for a plan, the root in the nearest tier that has it."""

    def __init__(self, fold: Fold, tier: HotTier, tiers: Tiers) -> None:
        self._fold = fold
        self._tier = tier
        self._tiers = tiers

    async def ls(self, data: bytes) -> bytes:
        """Answer an `ls`."""
        try:
            question = decoded(data, LsQuestion)
            record = self._fold.catalogue.job(question.job)
        except RefusedError as error:
            return refusal(error)
        ordered = record.newest_first() if record else []
        listed = ordered[:LISTED_MAX]
        present = await asyncio.to_thread(self._where, listed)
        return msgspec.json.encode(
            {
                "job_id": question.job,
                "checkpoints": [
                    {**_entry(entry), "present": entry.id in present, "tiers": present.get(entry.id, [])}
                    for entry in listed
                ],
                "dropped": (record.dropped if record else 0) + len(ordered) - len(listed),
                "saves_failed": record.saves_failed if record else 0,
                "last_save_failure": record.last_save_failure if record else None,
                "job_ended": record.ended if record else "",
            }
        )

    def _where(self, entries: Sequence[Entry]) -> dict[str, list[str]]:
        """Return the tiers that name each checkpoint now, by its id; those that cannot be read name none."""
        found: dict[str, list[str]] = {}
        for entry in entries:
            try:
                with self._tier.open(entry.saved) as opened:
                    if opened.exists():
                        found.setdefault(entry.id, []).append(HOT)
            except (CheckpointGoneError, NotIntactError, TierUnavailableError):
                continue
        for tier in self._shared(entries[0]) if entries else ():
            try:
                names = set(tier.roots())
            except CheckpointError:
                continue
            for entry in entries:
                if entry.saved.checkpoint.directory in names:
                    found.setdefault(entry.id, []).append(tier.name)
        return found

    def _shared(self, entry: Entry) -> list[JobTier]:
        try:
            return self._tiers.of_job(entry.saved.tenant, entry.job)
        except CorruptCheckpointError:
            return []  # what it is called names nothing

    async def restore(self, data: bytes) -> bytes:
        """Answer a `restore` with a plan."""
        try:
            question = decoded(data, RestoreQuestion)
            record = restore.known_job(self._fold.catalogue.job(question.job), question.job)
            candidates = restore.candidates(record, question.job, question.checkpoint_id)
            entry, root, tier = await asyncio.to_thread(self._first_readable, candidates[:CANDIDATES_MAX])
            plan = restore.plan(entry, root, question.layers, tier)
            skipped = restore.skipped_before(record, entry) if question.checkpoint_id is None else []
            return msgspec.json.encode({**plan, "skipped": skipped})
        except RefusedError as error:
            return refusal(error)

    def _first_readable(self, candidates: Sequence[Entry]) -> tuple[Entry, roots.Root, str]:
        failures = []
        away: list[Exception] = []
        for entry in candidates:
            try:
                with self._tier.open(entry.saved) as opened, opened.store() as held:
                    return entry, read_root(opened, held, entry.saved), HOT
            except (CheckpointGoneError, NotIntactError) as error:
                failures.append(f"{entry.id[:12]}: {error}")
            except TierUnavailableError as error:
                away.append(error)
            for tier in self._shared(entry):
                try:
                    root = tier.root(entry.saved.checkpoint.directory)
                    as_reported(root, entry.saved)
                    return entry, root, tier.name
                except (NotIntactError, CorruptCheckpointError) as error:
                    failures.append(f"{entry.id[:12]}: {error}")
                except CheckpointError as error:
                    away.append(error)
        if away:
            raise RefusedError("TierUnavailable", f"{away[0]}; ask again later")
        raise RefusedError("NotThere", "nothing to restore from is left: " + "; ".join(failures))


def decoded(data: bytes, kind: type[Question]) -> Question:
    """Return a question. Raises RefusedError for anything else."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedError("BadQuestion", f"the question was refused: {error}", kind.__struct_fields__) from error


def refusal(error: RefusedError) -> bytes:
    """Return the answer that refuses."""
    return msgspec.json.encode({"error": _plain(str(error)), "code": error.code, "accepted": error.accepted})


def _plain(text: str) -> str:
    # File names in it are the job's and need not be text at all.
    return text[:REFUSAL_CHARS_MAX].encode("ascii", "backslashreplace").decode()


def _entry(entry: Entry) -> dict[str, Any]:
    saved = entry.saved
    return {
        "id": entry.id,
        "step": saved.checkpoint.step,
        "attempt": saved.checkpoint.attempt,
        "rank": saved.rank,
        "node": saved.node,
        "directory": saved.checkpoint.directory,
        "tier": saved.tier,
        "status": entry.status,
        "size_bytes": entry.size_bytes,
        "layers": [msgspec.to_builtins(layer) for layer in saved.checkpoint.layers],
        "saved_at_ns": saved.at_ns,
        "seq": entry.seq,
        "failure": msgspec.to_builtins(entry.failure) if entry.failure else None,
    }
