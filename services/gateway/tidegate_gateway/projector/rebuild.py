"""Projects history again beside the active generation, and switches over once it has caught up."""

from __future__ import annotations

import asyncpg
import msgspec
import structlog
from tidegate_events.journal.base import Journal

from tidegate_gateway.database import generations, migrations
from tidegate_gateway.database.connection import Connection, Database
from tidegate_gateway.database.generations import Generation
from tidegate_gateway.projector.follow import Follower
from tidegate_gateway.projector.projection import Projection

SWITCHES_MAX = 100
OTHER_SECONDS = 5
"""A heartbeat that is younger belongs to a rebuild that runs now."""

log = structlog.get_logger()


class RebuildRunsError(Exception):
    """Another rebuild is at work."""


class Rebuilt(msgspec.Struct, frozen=True):
    """What a rebuild did."""

    generation: int
    seq: int
    resumed_at: int


async def rebuild(database: Database, journal: Journal, name: str) -> Rebuilt:
    """Build a generation to the journal's end and make it the active one; go on with one that was left unfinished.

    Readers see the old generation until the switch and the new one after it. Raises RebuildRunsError,
    DatabaseAwayError, and what Follower.run raises.
    """
    async with database.connection() as connection:
        await migrations.migrate(connection)
        generation = await generations.building(connection)
        await _refuse_second(connection, generation, name)
    projection = await Projection.load(database, generation)
    begun = projection.seq
    log.info("rebuild_begun", generation=generation.number, after=begun)
    for _ in range(SWITCHES_MAX):
        await Follower(journal, projection, name).run(to_end=True)
        if await _switch(database, generation):
            return Rebuilt(generation.number, projection.seq, begun)
    raise RebuildRunsError(f"the active generation stayed ahead of generation {generation.number}; run it again")


async def _switch(database: Database, generation: Generation) -> bool:
    """Make the generation the active one; say whether that was possible now."""
    async with database.connection() as connection:
        try:
            return await generations.activate(connection, generation)
        except asyncpg.LockNotAvailableError:
            log.info("switch_put_off", generation=generation.number, why="readers left no gap")
            return False


async def _refuse_second(connection: Connection, generation: Generation, name: str) -> None:
    other = await connection.fetchval(
        f"SELECT projector FROM {generation.schema}.position"
        " WHERE projector NOT IN ('', $1) AND seen_at > now() - make_interval(secs => $2)",
        *(name, float(OTHER_SECONDS)),
    )
    if other is not None:
        raise RebuildRunsError(f"{other} builds generation {generation.number} now; wait for it")
