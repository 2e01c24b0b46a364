"""The service's pen: appends facts to the journal, each exactly once, whatever dies in between.

Every append is guarded by the last frame of the service's own subject that the fold has seen. So a frame that an
earlier process sent before it was killed, and that arrives late, breaks the guard; it is folded before anything is
written again, and by then nothing is left to say. A second process of the same name is held off alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog
from tidegate_events import subjects
from tidegate_events.cancellation import honour_cancellation
from tidegate_events.clock import Clock
from tidegate_events.envelope import AttemptEvent
from tidegate_events.frame import Frame, Writer
from tidegate_events.journal.base import Conflict, Journal, JournalFullError, JournalGapError, JournalUnavailableError

from tidegate_checkpoint.fold import Fold

UNAVAILABLE_WAIT_SECONDS = 1.0
FULL_WAIT_SECONDS = 10.0

Make = Callable[[Writer, dict[str, Any]], Frame]
"""Makes a frame for a writer; also given is what all its events have in common."""

log = structlog.get_logger()


class Pen:
    """Its epoch tells the service's processes apart: the time at which this one began to write."""

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

    async def write(self, about: AttemptEvent, place: str, make: Make, is_said: Callable[[], bool]) -> None:
        """Append what `make` makes, unless it is said already; return when it is folded back. Waits out any outage.

        `about` is the fact that it answers, at `place` in the journal (empty: nowhere in particular).
        """
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
                    frame = make(*self._begin(about, place))
                await self._append(about, frame, own_last)

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

    async def _append(self, about: AttemptEvent, frame: Frame, own_last: int) -> None:
        try:
            answer = await self._journal.append(self._subject, frame, expected_last=own_last)
        except JournalUnavailableError as error:
            log.warning("verdict_waits", job=about.job, about=about.id, why=str(error))
            await asyncio.sleep(UNAVAILABLE_WAIT_SECONDS)
        except JournalFullError as error:
            remedy = "begin a new journal generation"
            log.error("verdict_waits", job=about.job, about=about.id, why=str(error), remedy=remedy)
            await asyncio.sleep(FULL_WAIT_SECONDS)
        else:
            if isinstance(answer, Conflict):
                if answer.actual < own_last:
                    raise JournalGapError(f"frame {own_last} of {self._subject} was folded and is no longer there")
                log.info("verdict_overtaken", job=about.job, expected=answer.expected, actual=answer.actual)
                self._last = max(self._last, answer.actual)
            else:
                self._last = max(self._last, answer.seq)

    def _begin(self, about: AttemptEvent, place: str) -> tuple[Writer, dict[str, Any]]:
        self._writer_seq += 1
        writer = Writer("checkpoint", self._instance, self._begin_epoch(), self._writer_seq)
        return writer, {
            "at_ns": self._clock.now_ns(),
            "cause": place,
            "tenant": about.tenant,
            "job": about.job,
            "traceparent": about.traceparent,
            "attempt": about.attempt,
        }
