"""The checkpoint service's shell: follows the journal, reads back what was saved, says so, and answers questions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from tidegate_events.clock import Clock
from tidegate_events.journal.base import Journal
from tidegate_events.process import say_ready

from tidegate_checkpoint.catalogue import Entry
from tidegate_checkpoint.fold import Fold
from tidegate_checkpoint.hot import HotTier, TierUnavailableError
from tidegate_checkpoint.questions import LS_SUBJECT, RESTORE_SUBJECT, Answers
from tidegate_checkpoint.settings import Settings
from tidegate_checkpoint.verdicts import Verdicts
from tidegate_checkpoint.verify import Broken, InterruptedByStopError, Verified, verify

TIER_RETRY_SECONDS = 5.0

log = structlog.get_logger()


class CheckpointService:
    """One process of the service. Without a `client` it answers no questions."""

    def __init__(self, settings: Settings, client: Client | None, journal: Journal, clock: Clock) -> None:
        self._settings = settings
        self._client = client
        self._journal = journal
        self._tier = HotTier(settings.hot_dir)
        self._fold = Fold(journal)
        self._verdicts = Verdicts(journal, self._fold, clock, settings.instance)
        self._reading: dict[str, Entry] = {}
        self._not_before: dict[str, float] = {}
        self._stopping = threading.Event()

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._fold.run())
                # What was said before this process began decides what is left to do: nothing is read before that.
                await self._fold.reach(await self._journal.end())
                await self._listen()
                say_ready()
                log.info("ready", seq=self._fold.catalogue.seq, unsettled=len(self._fold.catalogue.unsettled()))
                for _ in range(self._settings.verifications):
                    tasks.create_task(self._verify_for_ever())
        finally:
            self._stopping.set()

    async def _listen(self) -> None:
        if self._client is None:
            return
        answers = Answers(self._fold, self._tier)
        await self._client.subscribe(LS_SUBJECT, cb=_responder(answers.ls))
        await self._client.subscribe(RESTORE_SUBJECT, cb=_responder(answers.restore))

    async def _verify_for_ever(self) -> None:
        while True:
            entry = await self._next()
            try:
                await self._settle(entry)
            finally:
                del self._reading[entry.job]
            await self._fold.tell()

    async def _next(self) -> Entry:
        """Return the longest waiting checkpoint, of a job of which none is being read: no job keeps others waiting."""
        while True:
            moves, now = self._fold.moves, asyncio.get_running_loop().time()
            for entry in self._fold.catalogue.unsettled():
                if entry.job not in self._reading and self._not_before.get(entry.job, now) <= now:
                    self._reading[entry.job] = entry
                    return entry
            try:
                async with asyncio.timeout(TIER_RETRY_SECONDS):
                    await self._fold.moved(moves)
            except TimeoutError:
                continue

    async def _settle(self, entry: Entry) -> None:
        try:
            verdict = await asyncio.to_thread(verify, self._tier, entry.saved, self._stopping.is_set)
        except TierUnavailableError as error:
            log.error("tier_unavailable", job=entry.job, checkpoint=entry.id, why=str(error))
            # Only this job waits: its directory may be all that cannot be read.
            self._not_before[entry.job] = asyncio.get_running_loop().time() + TIER_RETRY_SECONDS
            return
        except InterruptedByStopError:
            return
        self._not_before.pop(entry.job, None)
        await self._verdicts.record(entry, verdict)
        _log(entry, verdict)


def _log(entry: Entry, verdict: Verified | Broken) -> None:
    about = {"job": entry.job, "checkpoint": entry.id, "step": entry.saved.checkpoint.step}
    if isinstance(verdict, Verified):
        log.info("checkpoint_verified", size_bytes=verdict.size_bytes, **about)
    else:
        log.warning("checkpoint_failed", code=verdict.reason.code, detail=verdict.reason.detail, **about)


def _responder(answer: Callable[[bytes], Awaitable[bytes]]) -> Callable[[Msg], Awaitable[None]]:
    async def respond(message: Msg) -> None:
        if message.reply:
            await message.respond(await answer(message.data))

    return respond
