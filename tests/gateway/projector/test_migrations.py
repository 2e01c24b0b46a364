"""Migrations go forward only: each once, whole or not at all, for generations to come as for those that are there."""

from __future__ import annotations

import asyncio
import hashlib

import asyncpg
import pytest
from tidegate_gateway.database import generations, migrations
from tidegate_gateway.database.connection import Database
from tidegate_gateway.database.migrations import Migration, MigrationError, known, migrate, parse


def more(text: str, number: int = 9000) -> Migration:
    """Return a migration that comes after this program's."""
    return parse(f"{number}_more.sql", text)


async def test_each_is_applied_once_also_when_several_ask(database: Database) -> None:
    async def one() -> list[str]:
        async with database.connection() as connection:
            return await migrate(connection)

    answers = await asyncio.gather(*[one() for _ in range(5)])
    assert sorted(map(len, answers)) == [0, 0, 0, 0, len(known())]
    async with database.connection() as connection:
        assert await migrations.pending(connection) == []


async def test_a_generation_gets_what_comes_later_and_shows_it(database: Database) -> None:
    async with database.connection() as connection:
        await migrate(connection)
        first = await generations.ensure_active(connection)
        added = more("CREATE TABLE tidegate.once (a integer);\n-- scope: generation\nCREATE TABLE extra (b integer);")
        applied = await migrate(connection, [*known(), added])
        assert applied == ["9000_more", f"9000_more in {first.schema}"]
        assert await generations.ensure_active(connection) == first, "it is still whole"
        assert await connection.fetchval("SELECT count(*) FROM tidegate.extra") == 0
        assert await connection.fetchval("SELECT count(*) FROM tidegate.once") == 0


async def test_one_that_fails_leaves_nothing(database: Database) -> None:
    async with database.connection() as connection:
        await migrate(connection)
        broken = more("CREATE TABLE tidegate.half (a integer);\nINSERT INTO tidegate.half VALUES ('no number');")
        with pytest.raises(asyncpg.PostgresError):
            await migrate(connection, [*known(), broken])
        assert await connection.fetchval("SELECT to_regclass('tidegate.half')") is None
        with pytest.raises(MigrationError, match="is no SQL"):
            await migrate(connection, [*known(), more("CREATE TABEL x;")])
        assert await migrate(connection) == []


async def test_other_histories_are_refused(database: Database) -> None:
    async with database.connection() as connection:
        await migrate(connection, [*known(), more("SELECT 1")])
        with pytest.raises(MigrationError, match="9000, which this program does not know"):
            await migrate(connection)
        with pytest.raises(MigrationError, match="never changes"):
            await migrate(connection, [*known(), more("SELECT 2")])


def test_files_are_read_by_their_sections() -> None:
    text = "SELECT 1;\n-- scope: generation\nSELECT 2;\n-- scope: shared\nSELECT 3;\n"
    migration = parse("0042_a_name.sql", text)
    assert (migration.number, migration.name) == (42, "a_name")
    assert (migration.shared, migration.generation) == ("SELECT 1;\n\n\nSELECT 3;", "SELECT 2;")
    assert migration.digest == hashlib.sha256(text.encode()).hexdigest()
    for name, body, why in (("42_x.sql", "", "NNNN_name.sql"), ("0042_x.sql", "-- scope: all\n", "'all' is unknown")):
        with pytest.raises(MigrationError, match=why):
            parse(name, body)
