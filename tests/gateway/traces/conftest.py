"""A PostgreSQL with the tables of one generation, for the traces that are written there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest
from tidegate_gateway.database import generations
from tidegate_gateway.database.connection import Database
from tidegate_gateway.database.migrations import migrate
from tidegate_gateway.traces import store
from tidegate_gateway.traces.span import Span

from tests.support.otlp import OtlpReceiver
from tests.support.postgres import PostgresServer


class Kept(msgspec.Struct, frozen=True):
    """A database, and the schema of its active generation."""

    database: Database
    schema: str

    async def write(self, spans: list[Span], states: dict[str, bytes | None] | None = None) -> None:
        """Write as the projector does."""
        async with self.database.transaction() as connection:
            await store.write(connection, self.schema, spans, states or {})


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    asyncio.run(server.start())
    yield server
    server.remove()


@pytest.fixture
async def kept(postgres: PostgresServer) -> AsyncIterator[Kept]:
    database = Database(await postgres.fresh_database(), name="test")
    await database.open()
    async with database.connection() as connection:
        await migrate(connection)
        generation = await generations.ensure_active(connection)
    yield Kept(database, generation.schema)
    await database.close()


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    made = OtlpReceiver()
    yield made
    made.close()
