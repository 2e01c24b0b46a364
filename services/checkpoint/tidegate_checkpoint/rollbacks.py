"""Answers `tg.ask.checkpoint.rollback`: the newest checkpoint of a job, with some layers as they were in an older one.

The new checkpoint is made in the nearest shared tier that holds both, and is journaled with its verdict. A job takes it
when it resumes next; one that runs goes on as it is, and what it saves next is newer.
"""

from __future__ import annotations

import asyncio
from typing import Literal, cast

import msgspec
from tidegate.checkpoint.root import Root
from tidegate.errors import CheckpointError, UnknownLayerError
from tidegate.tiers.objects import TierUnavailableError
from tidegate.tiers.rolling import roll_back
from tidegate.tiers.tiers import Tiers
from tidegate_events.clock import Clock
from tidegate_events.events import CheckpointRef, LayerRef

from tidegate_checkpoint import restore
from tidegate_checkpoint.catalogue import Entry
from tidegate_checkpoint.fold import Fold
from tidegate_checkpoint.questions import decoded, refusal
from tidegate_checkpoint.restore import RefusedError
from tidegate_checkpoint.verdicts import Verdicts

ROLLBACK_SUBJECT = "tg.ask.checkpoint.rollback"
LAYERS_MAX = 4


class RollbackQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which layers of a job go back to which checkpoint?"""

    job: str
    checkpoint_id: str
    layers: tuple[str, ...]


class Rollbacks:
    """Makes rolled-back checkpoints, one at a time."""

    def __init__(self, fold: Fold, tiers: Tiers, verdicts: Verdicts, clock: Clock) -> None:
        self._fold = fold
        self._tiers = tiers
        self._verdicts = verdicts
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()

    async def answer(self, data: bytes) -> bytes:
        """Answer a question with the new checkpoint, or with why there is none."""
        try:
            async with self._one_at_a_time:
                return msgspec.json.encode(await self._roll(decoded(data, RollbackQuestion)))
        except RefusedError as error:
            return refusal(error)

    async def _roll(self, question: RollbackQuestion) -> dict[str, object]:
        record = restore.known_job(self._fold.catalogue.job(question.job), question.job)
        if record.ended:
            raise RefusedError("JobEnded", f"job {question.job!r} has ended: nothing resumes from its checkpoints")
        (older,) = restore.candidates(record, question.job, question.checkpoint_id)
        verified = [
            entry
            for entry in record.newest_first()
            if entry.status == "verified" and entry.saved.rank == older.saved.rank
        ]
        ids = [entry.id for entry in verified[1:]]
        if older not in verified or older is verified[0] or len(question.layers) > LAYERS_MAX:
            said = "it is the newest" if verified and older is verified[0] else "it is not verified"
            raise RefusedError("NothingToRollBack", f"checkpoint {older.id[:12]} was refused: {said}", ids)
        newest = verified[0]
        root, tier = await asyncio.to_thread(self._make, newest, older, question)
        layers = tuple(LayerRef(name=each.name, digest=each.manifest, size_bytes=each.bytes) for each in root.layers)
        ref = CheckpointRef(id=root.id, step=root.step, attempt=root.stamp.attempt, directory=root.name, layers=layers)
        await self._verdicts.announce(newest, ref, tier)
        return {
            "job_id": question.job,
            "checkpoint_id": root.id,
            "step": root.step,
            "tier": tier,
            "rolled_back": list(question.layers),
            "to": older.id,
            "from": newest.id,
        }

    def _make(self, newest: Entry, older: Entry, question: RollbackQuestion) -> tuple[Root, Literal["warm", "cold"]]:
        why: list[CheckpointError] = []
        for tier in self._tiers.of_job(newest.saved.tenant, newest.job):
            names = newest.saved.checkpoint.directory, older.saved.checkpoint.directory
            try:
                root = roll_back(tier, *names, question.layers, self._clock.now_ns())
            except UnknownLayerError as error:
                held = [layer.name for layer in older.saved.checkpoint.layers]
                raise RefusedError("UnknownLayer", str(error), held) from error
            except CheckpointError as error:
                why.append(error)
                continue
            return root, cast(Literal["warm", "cold"], tier.name)
        if any(isinstance(error, TierUnavailableError) for error in why):
            raise RefusedError("TierUnavailable", f"{why[0]}; ask again later")
        said = "; ".join(str(error) for error in why) or "there is none"
        raise RefusedError("NotPromoted", f"no shared tier holds both checkpoints so that they fit: {said}")
