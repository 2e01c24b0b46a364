"""Writes verdicts to the journal, each exactly once, whatever dies in between.

Every append is guarded by the last frame of the service's own subject that the fold has seen. So a frame that an
earlier process sent before it was killed, and that arrives late, breaks the guard; it is folded before anything is
written again, and by then the checkpoint has its verdict. A second process of the same name is held off alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

import structlog
from tidegate_events import subjects
from tidegate_events.cancellation import honour_cancellation
from tidegate_events.clock import Clock
from tidegate_events.events import CheckpointFailed, CheckpointRef, CheckpointSaved, CheckpointVerified, Reason
from tidegate_events.frame import Frame, Writer
from tidegate_events.journal.base import Conflict, Journal, JournalFullError, JournalGapError, JournalUnavailableError

from tidegate_checkpoint.catalogue import Entry
from tidegate_checkpoint.fold import Fold
from tidegate_checkpoint.verify import Broken, Verified

UNAVAILABLE_WAIT_SECONDS = 1.0
FULL_WAIT_SECONDS = 10.0

log = structlog.get_logger()


class Verdicts:
    """The service's pen. Its epoch tells its processes apart: the time at which this one began to write."""

    def __init__(self, journal: Journal, fold: Fold, clock: Clock, instance: str) -> None:
        self._journal = journal
        self._fold = fold
        self._clock = clock
        self._instance = instance
        self._subject = subjects.fact("checkpoint", instance)
        self._epoch = 0
        self._writer_seq = 0
        self._last = 0
        self._one_at_a_time = asyncio.Lock()

    async def record(self, entry: Entry, verdict: Verified | Broken) -> None:
        """Append the verdict unless the journal has one; return when it is folded back. Waits out any outage."""
        await self._write(
            entry, lambda: self._frame(entry, verdict), lambda: not self._fold.catalogue.is_unsettled(entry)
        )

    async def announce(self, entry: Entry, ref: CheckpointRef, tier: Literal["warm", "cold"]) -> None:
        """Say that a checkpoint made of verified layers is in a tier, whole; `entry` is the one that it continues.

        Both are one frame: nobody sees it without its verdict.
        """
        catalogue = self._fold.catalogue
        await self._write(
            entry,
            lambda: self._made(entry, ref, tier),
            lambda: catalogue.reported(entry.job, ref.id) is not None,
        )

    async def _write(self, entry: Entry, make: Callable[[], Frame], is_said: Callable[[], bool]) -> None:
        async with self._one_at_a_time:
            frame: Frame | None = None
            while True:
                honour_cancellation()
                own_last = self._fold.catalogue.last_by_subject.get(self._subject, 0)
                if own_last < self._last:
                    await self._fold.reach(self._last)
                    continue
                if is_said():
                    return
                if frame is None or frame.writer.epoch < self._begin_epoch():
                    frame = make()
                await self._append(entry, frame, own_last)

    def _begin_epoch(self) -> int:
        """Return this process's epoch, above that of every other that wrote here, whatever the clock said.

        A frame of an older epoch counts as a late duplicate: it would be acknowledged, and be void.
        """
        before = self._fold.catalogue.epoch_by_subject.get(self._subject, 0)
        if self._epoch == 0:
            self._epoch = max(self._clock.now_ns(), before + 1)
        elif before > self._epoch:
            self._epoch = before + 1
        return self._epoch

    async def _append(self, entry: Entry, frame: Frame, own_last: int) -> None:
        try:
            answer = await self._journal.append(self._subject, frame, expected_last=own_last)
        except JournalUnavailableError as error:
            log.warning("verdict_waits", job=entry.job, checkpoint=entry.id, why=str(error))
            await asyncio.sleep(UNAVAILABLE_WAIT_SECONDS)
        except JournalFullError as error:
            remedy = "begin a new journal generation"
            log.error("verdict_waits", job=entry.job, checkpoint=entry.id, why=str(error), remedy=remedy)
            await asyncio.sleep(FULL_WAIT_SECONDS)
        else:
            if isinstance(answer, Conflict):
                if answer.actual < own_last:
                    raise JournalGapError(f"frame {own_last} of {self._subject} was folded and is no longer there")
                log.info("verdict_overtaken", job=entry.job, expected=answer.expected, actual=answer.actual)
                self._last = max(self._last, answer.actual)
            else:
                self._last = max(self._last, answer.seq)

    def _begin(self, entry: Entry) -> tuple[Writer, dict[str, Any]]:
        self._writer_seq += 1
        writer = Writer("checkpoint", self._instance, self._begin_epoch(), self._writer_seq)
        saved = entry.saved
        return writer, {
            "at_ns": self._clock.now_ns(),
            "cause": entry.place,
            "tenant": saved.tenant,
            "job": saved.job,
            "traceparent": saved.traceparent,
            "attempt": saved.attempt,
        }

    def _made(self, entry: Entry, ref: CheckpointRef, tier: Literal["warm", "cold"]) -> Frame:
        writer, common = self._begin(entry)
        size = sum(layer.size_bytes for layer in ref.layers)
        rank, node = entry.saved.rank, entry.saved.node
        saved = CheckpointSaved(id=writer.event_id(0), **common, rank=rank, node=node, checkpoint=ref, tier=tier)
        verified = CheckpointVerified(id=writer.event_id(1), **common, checkpoint_id=ref.id, size_bytes=size)
        return Frame(writer, (saved, verified))

    def _frame(self, entry: Entry, verdict: Verified | Broken) -> Frame:
        writer, common = self._begin(entry)
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
