"""The view that a gateway starts with: loaded where the projection is there and tells of this journal, else empty.

An empty one is no harm: the fold then goes through history from its beginning, which only takes longer.
"""

from __future__ import annotations

import asyncio

import nats.errors
import structlog
from tidegate_events.journal.base import Journal, JournalError

from tidegate_gateway.database import generations
from tidegate_gateway.database.connection import Database, DatabaseAwayError
from tidegate_gateway.database.documents import UnreadableRowError
from tidegate_gateway.database.loader import load_view
from tidegate_gateway.database.origin import difference
from tidegate_gateway.view.projection import View

START_SECONDS_MAX = 8.0
RETRY_WAIT_SECONDS = 0.5

log = structlog.get_logger()


class OtherJournalError(Exception):
    """The tables tell another history than the journal does; says what to do. Not retriable."""


async def starting_view(database: Database, journal: Journal) -> View:
    """Return the view at the projection's position, an empty one where there is none within START_SECONDS_MAX.

    Raises OtherJournalError: what the database says must then not be shown.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + START_SECONDS_MAX
    while True:
        try:
            return await _load(database, journal)
        except UnreadableRowError as error:
            log.warning("view_from_journal", why=str(error))
            return View()
        except (DatabaseAwayError, JournalError, nats.errors.Error, TimeoutError) as error:
            if loop.time() > deadline:
                log.warning("view_from_journal", why=str(error), waited_seconds=START_SECONDS_MAX)
                return View()
        await asyncio.sleep(RETRY_WAIT_SECONDS)


async def _load(database: Database, journal: Journal) -> View:
    async with database.transaction(read_only=True) as connection:
        generation = await generations.active(connection)
        if generation is None or not generation.current:
            log.info("view_from_journal", why="nothing is projected yet" if generation is None else "by another fold")
            return View()
        view = await load_view(connection, generation.schema)
        known = await connection.fetchval(f"SELECT journal FROM {generation.schema}.position")
    if (problem := await difference(journal, view.seq, known)) is not None:
        raise OtherJournalError(problem)
    log.info("view_loaded", seq=view.seq, jobs=len(view.jobs), forgotten=len(view.forgotten))
    return view
