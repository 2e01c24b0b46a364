"""Projection generations: each is a schema of its own, one is active, and views show the active one to everybody.

A rebuild makes a new generation beside the active one and switches in one transaction, so that readers see either the
old tables or the new ones, and never a part.
"""

from __future__ import annotations

import asyncio

import asyncpg
import msgspec
import structlog

from tidegate_gateway.database.connection import Connection
from tidegate_gateway.database.migrations import is_whole, lock, schema_of, shape_generation

FOLD_VERSION = 2
"""Raised with whatever makes the same journal give other rows: the projector then projects history again."""
RETIRED_SECONDS_MIN = 30
"""How long the old generation stays after a switch: longer than any reader's transaction may take."""
SWITCH_LOCK_MS_MAX = 100
"""Well below PostgreSQL's deadlock_timeout (1 s), after which it would fail one of the two."""
SWITCH_TRIES_MAX = 20
SWITCH_PAUSE_SECONDS = 0.02
_SCHEMA_VIEWS = "tidegate"

log = structlog.get_logger()


class Generation(msgspec.Struct, frozen=True):
    """One generation."""

    number: int
    state: str
    fold_version: int

    @property
    def schema(self) -> str:
        """Return the name of its schema."""
        return schema_of(self.number)

    @property
    def current(self) -> bool:
        """Say whether this program's fold made it."""
        return self.fold_version == FOLD_VERSION


class NotActiveError(Exception):
    """The generation is not there any more, or another one took its place."""


async def active(connection: Connection) -> Generation | None:
    """Return the active generation whose tables are there, None where there is none.

    Who reads with more than one statement reads the tables of `schema`, not the views: those may be switched between.
    """
    if not await connection.fetchval("SELECT to_regclass('tidegate.generations') IS NOT NULL"):
        return None
    found = await _one(connection, "state = 'active'")
    return found if found is not None and await is_whole(connection, found.number) else None


async def ensure_active(connection: Connection) -> Generation:
    """Return the active generation; make an empty one where there is none, or where its tables were dropped."""
    async with connection.transaction():
        await lock(connection)
        if (found := await active(connection)) is not None:
            await _show(connection, found)  # a migration may have brought tables
            return found
        if (lost := await _one(connection, "state = 'active'")) is not None:
            log.warning("generation_not_whole", generation=lost.number, remedy="history is projected again")
            await _drop(connection, lost)
        made = await _make(connection, "active")
        await _show(connection, made)
        return made


async def building(connection: Connection) -> Generation:
    """Return the generation that is being built, to go on with it, or a new one."""
    async with connection.transaction():
        await lock(connection)
        found = await _one(connection, "state = 'building'")
        if found is not None and found.current and await is_whole(connection, found.number):
            return found
        if found is not None:
            await _drop(connection, found)
        return await _make(connection, "building")


async def activate(connection: Connection, generation: Generation) -> bool:
    """Put a built generation into the active one's place, unless it is still behind it; say whether that was done.

    Raises asyncpg.LockNotAvailableError if readers left no gap, and then nothing has changed.
    """
    async with connection.transaction():
        await lock(connection)
        # The projector of the active generation holds this row while it writes: from here on it cannot move.
        await connection.execute("SELECT FROM tidegate.generations FOR UPDATE")
        old = await active(connection)
        if old is not None and await _position(connection, old) > await _position(connection, generation):
            return False
        await connection.execute(
            "UPDATE tidegate.generations SET state = 'retired', retired_at = now() WHERE state = 'active'"
        )
        await connection.execute(
            "UPDATE tidegate.generations SET state = 'active', activated_at = now() WHERE generation = $1",
            generation.number,
        )
        await _show_between_readers(connection, generation)
    log.info("generation_activated", generation=generation.number, before=old.number if old else None)
    return True


async def drop_retired(connection: Connection, *, after_seconds: float = RETIRED_SECONDS_MIN) -> list[int]:
    """Drop the generations that were retired so long ago; return their numbers.

    Raises asyncpg.LockNotAvailableError while somebody still reads one.
    """
    async with connection.transaction():
        await lock(connection)
        await connection.execute(f"SET LOCAL lock_timeout = {SWITCH_LOCK_MS_MAX}")
        rows = await connection.fetch(
            "SELECT generation, state, fold_version FROM tidegate.generations WHERE state = 'retired'"
            " AND retired_at < now() - make_interval(secs => $1)",
            float(after_seconds),
        )
        for row in rows:
            await _drop(connection, _generation(row))
    dropped = [row["generation"] for row in rows]
    if dropped:
        log.info("generations_dropped", generations=dropped)
    return dropped


async def hold(connection: Connection, generation: Generation) -> None:
    """Keep the generation from being replaced until the transaction ends. Raises NotActiveError if it was already."""
    state = await connection.fetchval(
        "SELECT state FROM tidegate.generations WHERE generation = $1 FOR SHARE", generation.number
    )
    if state not in ("active", "building"):
        raise NotActiveError(f"generation {generation.number} is {state or 'gone'}")


async def _one(connection: Connection, where: str) -> Generation | None:
    row = await connection.fetchrow(f"SELECT generation, state, fold_version FROM tidegate.generations WHERE {where}")
    return None if row is None else _generation(row)


def _generation(row: asyncpg.Record) -> Generation:
    return Generation(row["generation"], row["state"], row["fold_version"])


async def _make(connection: Connection, state: str) -> Generation:
    number = await connection.fetchval("SELECT nextval('tidegate.generation_numbers')")
    made = Generation(number, state, FOLD_VERSION)
    await connection.execute(f"DROP SCHEMA IF EXISTS {made.schema} CASCADE")
    await connection.execute(f"CREATE SCHEMA {made.schema}")
    await connection.execute(
        "INSERT INTO tidegate.generations (generation, state, fold_version, activated_at)"
        " VALUES ($1, $2, $3, CASE WHEN $2 = 'active' THEN now() END)",
        *(number, state, FOLD_VERSION),
    )
    await shape_generation(connection, number)
    return made


async def _drop(connection: Connection, generation: Generation) -> None:
    await connection.execute(f"DROP SCHEMA IF EXISTS {generation.schema} CASCADE")
    await connection.execute("DELETE FROM tidegate.migrations WHERE generation = $1", generation.number)
    await connection.execute("DELETE FROM tidegate.generations WHERE generation = $1", generation.number)


async def _position(connection: Connection, generation: Generation) -> int:
    return int(await connection.fetchval(f"SELECT seq FROM {generation.schema}.position"))


async def _show_between_readers(connection: Connection, generation: Generation) -> None:
    """Point the views at a generation as soon as no reader is in the way.

    Readers lock views in any order, so to wait for one view while holding another can only end in a deadlock, which
    would fail a reader. Instead all are let go after a moment, and it is tried again.
    """
    for number in range(1, SWITCH_TRIES_MAX + 1):
        try:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = {SWITCH_LOCK_MS_MAX}")
                await _show(connection, generation)
            return
        except asyncpg.LockNotAvailableError:
            if number == SWITCH_TRIES_MAX:
                raise
        await asyncio.sleep(SWITCH_PAUSE_SECONDS)


async def _show(connection: Connection, generation: Generation) -> None:
    """Point the views of the schema `tidegate` at a generation's tables."""
    tables = await connection.fetch(_NOT_SHOWN, generation.schema)
    for row in tables:
        name = row["tablename"]
        view = f"VIEW {_SCHEMA_VIEWS}.{name} AS SELECT * FROM {generation.schema}.{name}"
        try:
            async with connection.transaction():
                await connection.execute(f"CREATE OR REPLACE {view}")
        except asyncpg.InvalidTableDefinitionError:
            # The columns changed their order or their types, which no replacement allows.
            await connection.execute(f"DROP VIEW {_SCHEMA_VIEWS}.{name}")
            await connection.execute(f"CREATE {view}")


_NOT_SHOWN = """
SELECT tablename FROM pg_tables WHERE schemaname = $1 AND NOT EXISTS (
    SELECT FROM information_schema.view_table_usage AS used
    WHERE used.view_schema = 'tidegate' AND used.view_name = tablename
    AND used.table_schema = $1 AND used.table_name = tablename
) ORDER BY tablename
"""
