"""Verification as a consumer of the journal: each reported checkpoint is read back, and its verdict recorded.

The verdict in the journal is what counts: a report that comes again finds it there and changes nothing. The consumer's
position only says from where on a report may still lack one.
"""

from __future__ import annotations

import asyncio

import structlog
from tidegate_events.consumer import ReaderSettings
from tidegate_events.events import CheckpointSaved, Event
from tidegate_events.lanes import Delivery

from tidegate_checkpoint.catalogue import Entry
from tidegate_checkpoint.fold import Fold
from tidegate_checkpoint.hot import HotTier, TierUnavailableError
from tidegate_checkpoint.verdicts import Verdicts
from tidegate_checkpoint.verify import Broken, Stopping, Verified, verify

CONSUMER = "checkpoint"
TRIES_MAX = 5
TIER_RETRY_SECONDS = 5.0

log = structlog.get_logger()


def reader_settings(verifications: int, node: str = "") -> ReaderSettings:
    """Return the bounds of the consumer: so many are read at a time. Each node has a position of its own."""
    return ReaderSettings(
        name=f"{CONSUMER}-{node}" if node else CONSUMER,
        tries_max=TRIES_MAX,
        pause_seconds=min(0.2, TIER_RETRY_SECONDS),
        pause_seconds_max=TIER_RETRY_SECONDS,
        parallel=verifications,
    )


class Verifier:
    """The handler. One checkpoint of a job is read at a time, so that no job keeps others waiting."""

    retriable = (TierUnavailableError,)

    def __init__(self, fold: Fold, tier: HotTier, verdicts: Verdicts, stopping: Stopping, node: str = "") -> None:
        self._fold = fold
        self._tier = tier
        self._verdicts = verdicts
        self._stopping = stopping
        self._node = node

    def lane(self, event: Event) -> str | None:
        """Return the job of a report; nothing else is wanted."""
        return event.job if isinstance(event, CheckpointSaved) else None

    async def handle(self, delivery: Delivery) -> None:
        """Read the checkpoint back and record the verdict, unless there is one."""
        await self._fold.reach(delivery.seq)
        event = delivery.event
        assert isinstance(event, CheckpointSaved)
        entry = self._fold.catalogue.reported(event.job, event.checkpoint.id)
        if self._node and event.node != self._node:
            return  # that node's own process reads it
        if entry is None or entry.place != delivery.place or not self._fold.catalogue.is_unsettled(entry):
            return
        verdict = await asyncio.to_thread(verify, self._tier, entry.saved, self._stopping)
        await self._verdicts.record(entry, verdict)
        _log(entry, verdict)


def _log(entry: Entry, verdict: Verified | Broken) -> None:
    about = {"job": entry.job, "checkpoint": entry.id, "step": entry.saved.checkpoint.step}
    if isinstance(verdict, Verified):
        log.info("checkpoint_verified", size_bytes=verdict.size_bytes, **about)
    else:
        log.warning("checkpoint_failed", code=verdict.reason.code, detail=verdict.reason.detail, **about)
