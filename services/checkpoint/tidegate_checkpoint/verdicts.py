"""Writes verdicts on checkpoints to the journal, each exactly once: see `pen.py`."""

from __future__ import annotations

from typing import Any, Literal

from tidegate_events.events import (
    CheckpointFailed,
    CheckpointRef,
    CheckpointSaved,
    CheckpointVerified,
    Reason,
)
from tidegate_events.frame import Frame, Writer

from tidegate_checkpoint.catalogue import Entry
from tidegate_checkpoint.pen import Pen
from tidegate_checkpoint.verify import Broken, Verified


class Verdicts(Pen):
    """What the service has to say of checkpoints that were reported."""

    async def record(self, entry: Entry, verdict: Verified | Broken) -> None:
        """Append the verdict unless the journal has one; return when it is folded back. Waits out any outage."""
        await self.write(
            entry.saved,
            entry.place,
            lambda writer, common: self._frame(entry, verdict, writer, common),
            lambda: not self._fold.catalogue.is_unsettled(entry),
        )

    async def announce(self, entry: Entry, ref: CheckpointRef, tier: Literal["warm", "cold"]) -> None:
        """Say that a checkpoint made of verified layers is in a tier, whole; `entry` is the one that it continues.

        Both are one frame: nobody sees it without its verdict.
        """
        catalogue = self._fold.catalogue
        await self.write(
            entry.saved,
            entry.place,
            lambda writer, common: made((entry.saved.rank, entry.saved.node), ref, tier, writer, common),
            lambda: catalogue.reported(entry.job, ref.id) is not None,
        )

    def _frame(self, entry: Entry, verdict: Verified | Broken, writer: Writer, common: dict[str, Any]) -> Frame:
        common |= {"id": writer.event_id(0), "checkpoint_id": entry.id}
        saved = entry.saved
        event: CheckpointVerified | CheckpointFailed
        if isinstance(verdict, Verified):
            event = CheckpointVerified(**common, size_bytes=verdict.size_bytes)
        else:
            reason = self._placed(entry, verdict)
            step = saved.checkpoint.step
            event = CheckpointFailed(**common, stage="verify", reason=reason, step=step)
        return Frame(writer, (event,))

    def _placed(self, entry: Entry, verdict: Broken) -> Reason:
        """Tell a checkpoint that its job's retention removed from one that should still be there."""
        if not verdict.gone:
            return verdict.reason
        if self._fold.catalogue.is_newest(entry):
            detail = f"{entry.saved.checkpoint.directory} is missing, and it is the job's newest checkpoint"
            return Reason(code="Missing", detail=detail)
        detail = f"{entry.saved.checkpoint.directory} was removed before it was read back; newer checkpoints are there"
        return Reason(code="RemovedByRetention", detail=detail)


def made(  # noqa: PLR0917
    member: tuple[int, str],
    ref: CheckpointRef,
    tier: Literal["warm", "cold"],
    writer: Writer,
    common: dict[str, Any],
    save: str = "",
) -> Frame:
    """Return the frame that says that a checkpoint is in a tier, made of layers that were all verified.

    `member` is the rank whose checkpoint it is, and its node.
    """
    rank, node = member
    size = sum(layer.size_bytes for layer in ref.layers)
    saved = CheckpointSaved(id=writer.event_id(0), **common, rank=rank, node=node, checkpoint=ref, tier=tier, save=save)
    verified = CheckpointVerified(id=writer.event_id(1), **common, checkpoint_id=ref.id, size_bytes=size)
    return Frame(writer, (saved, verified))
