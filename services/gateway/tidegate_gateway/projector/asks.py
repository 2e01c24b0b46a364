"""Rebuilds on request: whoever may ask on the bus can have history projected again, and see how far that is."""

from __future__ import annotations

import asyncio

import msgspec
import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from tidegate_events.journal.base import Journal, JournalError

from tidegate_gateway.database.connection import Database, DatabaseAwayError
from tidegate_gateway.database.generations import NotActiveError
from tidegate_gateway.projector.rebuild import RebuildRunsError, Rebuilt, rebuild
from tidegate_gateway.projector.store import MovedError

REBUILD_SUBJECT = "tg.ask.projector.rebuild"
PROGRESS_SUBJECT = "tg.ask.projector.rebuilding"
TRIES_MAX = 60
RETRY_WAIT_SECONDS = 1.0

log = structlog.get_logger()


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is answered to both questions; `error` says why the last rebuild did not come to its end."""

    running: bool
    rebuilt: Rebuilt | None = None
    error: str | None = None


class Rebuilds:
    """At most one rebuild at a time, in the service's own process."""

    def __init__(self, database: Database, journal: Journal, name: str) -> None:
        """`name` tells in the position who builds."""
        self._database = database
        self._journal = journal
        self._name = name
        self._wanted = asyncio.Event()
        self._answer = Answer(running=False)

    async def listen(self, client: Client) -> None:
        """Answer questions from now on."""
        await client.subscribe(REBUILD_SUBJECT, cb=self._on_rebuild)
        await client.subscribe(PROGRESS_SUBJECT, cb=self._on_progress)

    async def run(self) -> None:
        """Rebuild whenever that is asked for, for ever."""
        while True:
            await self._wanted.wait()
            try:
                rebuilt = await self._try()
                self._answer = Answer(running=False, rebuilt=rebuilt)
                log.info("rebuild_done", generation=rebuilt.generation, seq=rebuilt.seq)
            except* (
                DatabaseAwayError,
                RebuildRunsError,
                MovedError,
                NotActiveError,
                JournalError,
                TimeoutError,
            ) as group:
                why = str(group.exceptions[0])
                self._answer = Answer(running=False, error=why)
                log.error("rebuild_failed", why=why)
            self._wanted.clear()

    async def _try(self) -> Rebuilt:
        """Rebuild, going on where a try stopped while something was away."""
        for _ in range(TRIES_MAX - 1):
            try:
                return await rebuild(self._database, self._journal, self._name)
            except* (DatabaseAwayError, JournalError, nats.errors.Error, TimeoutError) as group:
                log.warning("rebuild_waits", why=str(group.exceptions[0]))
            await asyncio.sleep(RETRY_WAIT_SECONDS)
        return await rebuild(self._database, self._journal, self._name)

    async def _on_rebuild(self, message: Msg) -> None:
        if not self._answer.running:
            self._answer = Answer(running=True)
            self._wanted.set()
        await message.respond(msgspec.json.encode(self._answer))

    async def _on_progress(self, message: Msg) -> None:
        await message.respond(msgspec.json.encode(self._answer))
