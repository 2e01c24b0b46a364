"""The checkpoint service: follows the journal, reads back what was saved, keeps the tiers, answers questions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from tidegate.tiers.tiers import Tiers
from tidegate_events.consumer import DurableReader, ReaderPorts
from tidegate_events.joins import JOIN_QUEUE, JOIN_SUBJECT
from tidegate_events.process import say_ready

from tidegate_checkpoint.fold import Fold
from tidegate_checkpoint.hot import HotTier
from tidegate_checkpoint.joiner import Joiner
from tidegate_checkpoint.meters import Meters
from tidegate_checkpoint.questions import LS_SUBJECT, RESTORE_SUBJECT, Answers
from tidegate_checkpoint.rollbacks import ROLLBACK_SUBJECT, Rollbacks
from tidegate_checkpoint.settings import Settings
from tidegate_checkpoint.upkeep import Upkeep
from tidegate_checkpoint.verdicts import Verdicts
from tidegate_checkpoint.verifying import Verifier, reader_settings

log = structlog.get_logger()


class CheckpointService:
    """One process of the service. Without a `client` it answers no questions."""

    def __init__(self, settings: Settings, client: Client | None, ports: ReaderPorts) -> None:
        self._client = client
        self._journal = ports.journal
        self._tier = HotTier(settings.hot_dir)
        self._fold = Fold(ports.journal)
        self._stopping = threading.Event()
        verdicts = Verdicts(ports.journal, self._fold, ports.clock, settings.instance)
        verifier = Verifier(self._fold, self._tier, verdicts, self._stopping.is_set, settings.node)
        self._reader = DurableReader(reader_settings(settings.verifications, settings.node), ports, verifier)
        self._tiers = Tiers(settings.tiers)
        self.rollbacks = Rollbacks(self._fold, self._tiers, verdicts, ports.clock)
        self._upkeep = Upkeep(settings, self._tiers, self._fold, ports.clock, self._stopping.is_set)
        self.joiner = Joiner(
            settings.node, self._tiers, self._fold, verdicts, ports.clock, self._stopping.is_set, self._upkeep.meters
        )

    @property
    def meters(self) -> Meters:
        """Return what this process counts."""
        return self._upkeep.meters

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
                tasks.create_task(self._reader.run())
                tasks.create_task(self._upkeep.run())
                tasks.create_task(self.joiner.run())
        finally:
            self._stopping.set()

    async def _listen(self) -> None:
        if self._client is None:
            return
        answers = Answers(self._fold, self._tier, self._tiers)
        await self._client.subscribe(LS_SUBJECT, cb=_responder(answers.ls))
        await self._client.subscribe(RESTORE_SUBJECT, cb=_responder(answers.restore))
        # Agents ask this again and again, and any service knows: one answers each time.
        await self._client.subscribe(JOIN_SUBJECT, queue=JOIN_QUEUE, cb=_responder(self.joiner.answer))
        await self._client.subscribe(ROLLBACK_SUBJECT, cb=_responder(self.rollbacks.answer))


def _responder(answer: Callable[[bytes], Awaitable[bytes]]) -> Callable[[Msg], Awaitable[None]]:
    async def respond(message: Msg) -> None:
        if message.reply:
            await message.respond(await answer(message.data))

    return respond
