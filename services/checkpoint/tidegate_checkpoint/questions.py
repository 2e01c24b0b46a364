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

from tidegate_checkpoint import restore
from tidegate_checkpoint.catalogue import Entry
from tidegate_checkpoint.fold import Fold
from tidegate_checkpoint.hot import CheckpointGoneError, HotTier, NotIntactError, TierUnavailableError, read_root
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


Question = TypeVar("Question", LsQuestion, RestoreQuestion)


class Answers:
    """Answers from the catalogue and, for a plan, the root on disk."""

    def __init__(self, fold: Fold, tier: HotTier) -> None:
        self._fold = fold
        self._tier = tier

    async def ls(self, data: bytes) -> bytes:
        """Answer an `ls`."""
        try:
            question = _decode(data, LsQuestion)
            record = self._fold.catalogue.job(question.job)
        except RefusedError as error:
            return _refusal(error)
        ordered = record.newest_first() if record else []
        listed = ordered[:LISTED_MAX]
        present = await asyncio.to_thread(self._which_exist, listed)
        return msgspec.json.encode(
            {
                "job_id": question.job,
                "checkpoints": [{**_entry(entry), "present": entry.id in present} for entry in listed],
                "dropped": (record.dropped if record else 0) + len(ordered) - len(listed),
                "saves_failed": record.saves_failed if record else 0,
                "last_save_failure": record.last_save_failure if record else None,
                "job_ended": record.ended if record else "",
            }
        )

    def _which_exist(self, entries: Sequence[Entry]) -> set[str]:
        """Return the ids of those that lie in the tier now; where it cannot be read, of none."""
        found = set()
        for entry in entries:
            try:
                with self._tier.open(entry.saved) as opened:
                    if opened.exists():
                        found.add(entry.id)
            except (CheckpointGoneError, NotIntactError, TierUnavailableError):
                continue
        return found

    async def restore(self, data: bytes) -> bytes:
        """Answer a `restore` with a plan."""
        try:
            question = _decode(data, RestoreQuestion)
            record = restore.known_job(self._fold.catalogue.job(question.job), question.job)
            candidates = restore.candidates(record, question.job, question.checkpoint_id)
            entry, root = await asyncio.to_thread(self._first_readable, candidates[:CANDIDATES_MAX])
            plan = restore.plan(entry, root, question.layers)
            skipped = restore.skipped_before(record, entry) if question.checkpoint_id is None else []
            return msgspec.json.encode({**plan, "skipped": skipped})
        except RefusedError as error:
            return _refusal(error)

    def _first_readable(self, candidates: Sequence[Entry]) -> tuple[Entry, roots.Root]:
        failures = []
        for entry in candidates:
            try:
                with self._tier.open(entry.saved) as opened, opened.store() as held:
                    return entry, read_root(opened, held, entry.saved)
            except (CheckpointGoneError, NotIntactError) as error:
                failures.append(f"{entry.id[:12]}: {error}")
            except TierUnavailableError as error:
                raise RefusedError("TierUnavailable", f"{error}; ask again later") from error
        raise RefusedError("NotThere", "nothing to restore from is left: " + "; ".join(failures))


def _decode(data: bytes, kind: type[Question]) -> Question:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedError("BadQuestion", f"the question was refused: {error}", kind.__struct_fields__) from error


def _refusal(error: RefusedError) -> bytes:
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
