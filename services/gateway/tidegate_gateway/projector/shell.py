"""Runs a projector: bus, tables, and what reads from them, in one task group."""

from __future__ import annotations

import asyncio
import os

from tidegate_events import bus
from tidegate_events.clock import SystemClock
from tidegate_events.deadletter import nats_letters
from tidegate_events.journal.nats import NatsJournal
from tidegate_events.process import journal_archive, say_ready

from tidegate_gateway.database import migrations
from tidegate_gateway.database.connection import Database
from tidegate_gateway.projector import rebuild as rebuilding
from tidegate_gateway.projector.asks import Rebuilds
from tidegate_gateway.projector.rebuild import Rebuilt
from tidegate_gateway.projector.service import Projector
from tidegate_gateway.projector.settings import Settings
from tidegate_gateway.traces import export

MIGRATE_SECONDS_MAX = 600.0
"""A statement of a migration may take longer than one of the service."""


async def run(settings: Settings) -> None:
    """Project for ever. Raises what cannot be mended, so that a supervisor sees it."""
    spans_to = export.from_environment(os.environ)
    database = Database(settings.database_url, name=f"tidegate-projector-{settings.instance}")
    client = await bus.connect(settings.bus)
    try:
        await database.open()
        journal = NatsJournal(client, journal_archive())
        projector = Projector(database, journal, settings.instance, say_ready)
        rebuilds = Rebuilds(database, journal, f"{settings.instance}-rebuild")
        await rebuilds.listen(client)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(projector.run())
            tasks.create_task(projector.drop_retired())
            tasks.create_task(rebuilds.run())
            if spans_to is not None:
                tasks.create_task(export.Exporter(spans_to, database, nats_letters(client), SystemClock()).run())
    finally:
        await database.close()
        await bus.close(client)


async def migrate(database_url: str) -> list[str]:
    """Apply what is pending; return its names. Raises DatabaseAwayError and MigrationError."""
    database = Database(database_url, name="tidegate-migrate", command_seconds_max=MIGRATE_SECONDS_MAX)
    await database.open()
    try:
        async with database.connection() as connection:
            return await migrations.migrate(connection)
    finally:
        await database.close()


async def rebuild(settings: Settings) -> Rebuilt:
    """Project history again from this process. Raises what rebuild.rebuild raises."""
    database = Database(settings.database_url, name="tidegate-rebuild")
    client = await bus.connect(settings.bus)
    try:
        await database.open()
        return await rebuilding.rebuild(database, NatsJournal(client, journal_archive()), f"rebuild-{os.getpid()}")
    finally:
        await database.close()
        await bus.close(client)
