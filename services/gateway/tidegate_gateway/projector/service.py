"""The projector as a service: projects the active generation for ever, and heals by loading what the tables hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import nats.errors
import structlog
from tidegate_events.frame import UnreadableFrameError
from tidegate_events.journal.base import Journal, JournalError, JournalGapError

from tidegate_gateway.database import generations, migrations
from tidegate_gateway.database.connection import Database, DatabaseAwayError
from tidegate_gateway.database.generations import NotActiveError
from tidegate_gateway.projector.follow import Follower
from tidegate_gateway.projector.projection import Projection
from tidegate_gateway.projector.rebuild import RebuildRunsError, rebuild
from tidegate_gateway.projector.store import MovedError

RETRIES_MAX = 1200
RETRY_WAIT_SECONDS = 0.5
DROP_EVERY_SECONDS = 20.0

log = structlog.get_logger()


class Projector:
    """Keeps the active generation up to date."""

    def __init__(self, database: Database, journal: Journal, name: str, on_following: Callable[[], None]) -> None:
        """`on_following` is called once the tables are there and loaded."""
        self._database = database
        self._journal = journal
        self._name = name
        self._on_following = on_following

    async def run(self) -> None:
        """Project for ever. Raises what trying again cannot mend, and what RETRIES_MAX tries did not."""
        failures = 0
        while True:
            follower: Follower | None = None
            try:
                follower = Follower(self._journal, await self._load(), self._name)
                self._on_following()
                await follower.run()
            except* (JournalGapError, UnreadableFrameError):
                raise
            except* (MovedError, NotActiveError) as group:
                log.info("projection_reloaded", why=str(group.exceptions[0]))
            except* (DatabaseAwayError, RebuildRunsError, JournalError, nats.errors.Error, TimeoutError) as group:
                if failures >= RETRIES_MAX:
                    raise
                if failures % 20 == 0:
                    log.warning("projection_waits", why=str(group.exceptions[0]), failures=failures)
            failures = 0 if follower is not None and follower.wrote else failures + 1
            await asyncio.sleep(RETRY_WAIT_SECONDS)

    async def _load(self) -> Projection:
        """Return the active generation's projection; where another fold made it, one that was projected again."""
        async with self._database.connection() as connection:
            await migrations.migrate(connection)
            generation = await generations.ensure_active(connection)
        if not generation.current:
            log.info("fold_changed", generation=generation.number, fold_version=generation.fold_version)
            await rebuild(self._database, self._journal, self._name)
            async with self._database.connection() as connection:
                generation = await generations.ensure_active(connection)
        projection = await Projection.load(self._database, generation)
        log.info("projecting", generation=generation.number, after=projection.seq)
        return projection

    async def drop_retired(self) -> None:
        """Drop old generations now and then, for ever."""
        while True:
            await asyncio.sleep(DROP_EVERY_SECONDS)
            try:
                async with self._database.connection() as connection:
                    if await generations.active(connection) is not None:
                        await generations.drop_retired(connection)
            except DatabaseAwayError as error:
                log.info("drop_put_off", why=str(error))
