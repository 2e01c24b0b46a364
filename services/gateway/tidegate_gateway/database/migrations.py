"""Applies migrations: forward only, each once, under a lock, each whole or not at all.

A file `NNNN_name.sql` has sections, each opened by a line `-- scope: shared` or `-- scope: generation` (shared where
there is none). Shared ones run once in the database and name the schema `tidegate`. Those for a generation run once in
each projection generation's own schema `tg_<n>`, which is then the search path: they name no schema.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from importlib import resources
from typing import Literal

import asyncpg
import msgspec
import structlog

from tidegate_gateway.database.connection import Connection

LOCK_KEY = 7_417_364_001  # one key for every process that changes this database's shape
_FILE = re.compile(r"([0-9]{4})_([a-z0-9_]+)\.sql")
_SCOPE = re.compile(r"^-- scope: *(\S+) *$", re.MULTILINE)
SHARED = 0
"""Stands for the shared sections where a generation's number is asked."""

log = structlog.get_logger()

Scope = Literal["shared", "generation"]


class MigrationError(Exception):
    """The database cannot be brought to this program's shape; says why. Not retriable."""


class Migration(msgspec.Struct, frozen=True):
    """One file: its number, its name, its digest, and the SQL of each scope."""

    number: int
    name: str
    digest: str
    shared: str
    generation: str


def known() -> list[Migration]:
    """Return this program's migrations in order. Raises MigrationError for a file that cannot be one."""
    folder = resources.files("tidegate_gateway.database") / "migrations_sql"
    found = [parse(entry.name, entry.read_text()) for entry in folder.iterdir() if entry.name.endswith(".sql")]
    found.sort(key=lambda migration: migration.number)
    numbers = [migration.number for migration in found]
    if len(set(numbers)) != len(numbers):
        raise MigrationError(f"two migrations have the same number: {[m.name for m in found]}")
    if not found:
        raise MigrationError("the installation has no migrations; reinstall tidegate-server")
    return found


def parse(file_name: str, text: str) -> Migration:
    """Return the migration in a file. Raises MigrationError."""
    match = _FILE.fullmatch(file_name)
    if match is None:
        raise MigrationError(f"{file_name} is no name of a migration; NNNN_name.sql is")
    head, *rest = _SCOPE.split(text)
    parts: dict[str, list[str]] = {"shared": [head], "generation": []}
    for scope, body in zip(rest[::2], rest[1::2], strict=True):
        if scope not in parts:
            raise MigrationError(f"{file_name}: scope {scope!r} is unknown; shared and generation are known")
        parts[scope].append(body)
    digest = hashlib.sha256(text.encode()).hexdigest()
    shared, generation = ("\n".join(parts[scope]).strip() for scope in ("shared", "generation"))
    return Migration(int(match[1]), match[2], digest, shared, generation)


async def migrate(connection: Connection, migrations: Iterable[Migration] | None = None) -> list[str]:
    """Bring the shared schema and every generation up to date; return what was applied.

    Runs in one transaction under a lock, so that several processes may call it at once. Raises MigrationError.
    """
    wanted = list(known() if migrations is None else migrations)
    async with connection.transaction():
        await lock(connection)
        await connection.execute(_LEDGER)
        applied = await _bring_up(connection, wanted, SHARED)
        generations = await connection.fetch("SELECT generation FROM tidegate.generations ORDER BY generation")
        for row in generations:
            number = row["generation"]
            if await is_whole(connection, number) and (more := await _bring_up(connection, wanted, number)):
                await _count_tables(connection, number)
                applied += more
    for name in applied:
        log.info("migration_applied", migration=name)
    return applied


async def pending(connection: Connection) -> list[str]:
    """Return the names of shared migrations that were not applied yet."""
    exists = await connection.fetchval("SELECT to_regclass('tidegate.migrations') IS NOT NULL")
    done = await _applied(connection, SHARED) if exists else {}
    return [_title(migration, SHARED) for migration in known() if migration.number not in done]


async def lock(connection: Connection) -> None:
    """Take the lock on the database's shape, held until the transaction ends."""
    await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK_KEY)


async def shape_generation(connection: Connection, generation: int) -> None:
    """Make a generation's tables in its schema, which must be new. The caller holds `lock`."""
    await connection.execute("DELETE FROM tidegate.migrations WHERE generation = $1", generation)
    await _bring_up(connection, known(), generation)
    await _count_tables(connection, generation)


def schema_of(generation: int) -> str:
    """Return the name of a generation's schema."""
    return f"tg_{generation}"


async def is_whole(connection: Connection, generation: int) -> bool:
    """Say whether all tables of a generation are there: what was dropped by hand is projected again."""
    return bool(
        await connection.fetchval(
            f"SELECT tables = ({_TABLES}) FROM tidegate.generations WHERE generation = $2",
            *(schema_of(generation), generation),
        )
    )


async def _count_tables(connection: Connection, generation: int) -> None:
    await connection.execute(
        f"UPDATE tidegate.generations SET tables = ({_TABLES}) WHERE generation = $2",
        *(schema_of(generation), generation),
    )


async def _bring_up(connection: Connection, wanted: list[Migration], generation: int) -> list[str]:
    done = await _applied(connection, generation)
    _refuse_other_history(wanted, done)
    applied = []
    for migration in wanted:
        if migration.number in done:
            continue
        body = migration.shared if generation == SHARED else migration.generation
        schema = "tidegate" if generation == SHARED else schema_of(generation)
        await connection.execute(f"SET LOCAL search_path TO {schema}")
        try:
            if body:  # a file need not have both scopes
                await connection.execute(body)
        except asyncpg.PostgresSyntaxError as error:
            raise MigrationError(f"migration {_title(migration, generation)} is no SQL: {error}") from error
        await connection.execute("SET LOCAL search_path TO DEFAULT")
        await connection.execute(
            "INSERT INTO tidegate.migrations (generation, number, name, digest) VALUES ($1, $2, $3, $4)",
            *(generation, migration.number, migration.name, migration.digest),
        )
        applied.append(_title(migration, generation))
    return applied


async def _applied(connection: Connection, generation: int) -> dict[int, str]:
    rows = await connection.fetch("SELECT number, digest FROM tidegate.migrations WHERE generation = $1", generation)
    return {row["number"]: row["digest"] for row in rows}


def _refuse_other_history(wanted: list[Migration], done: dict[int, str]) -> None:
    """Refuse a database of a newer program, or one that was shaped by other files."""
    by_number = {migration.number: migration for migration in wanted}
    for number, digest in sorted(done.items()):
        migration = by_number.get(number)
        if migration is None:
            raise MigrationError(
                f"the database has migration {number:04}, which this program does not know: it is newer, and migrations"
                f" only go forward; use a program that knows it (this one knows up to {max(by_number):04})"
            )
        if migration.digest != digest:
            raise MigrationError(
                f"migration {number:04}_{migration.name} was applied with another text; an applied migration never"
                " changes: put its change into a new one"
            )


def _title(migration: Migration, generation: int) -> str:
    suffix = "" if generation == SHARED else f" in {schema_of(generation)}"
    return f"{migration.number:04}_{migration.name}{suffix}"


_TABLES = "SELECT count(*) FROM pg_tables WHERE schemaname = $1"
_LEDGER = """
CREATE SCHEMA IF NOT EXISTS tidegate;
CREATE TABLE IF NOT EXISTS tidegate.migrations (
    generation integer NOT NULL,  -- 0: the shared schema
    number integer NOT NULL,
    name text NOT NULL,
    digest text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (generation, number)
);
"""
