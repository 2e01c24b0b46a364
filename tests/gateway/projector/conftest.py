"""One real PostgreSQL for all tests of the projector, and an empty database for each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from tidegate_gateway.database.connection import Database

from tests.support.postgres import PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A running server; a test that stops it starts it again."""
    server = PostgresServer()
    asyncio.run(server.start())
    yield server
    server.remove()


@pytest.fixture
async def database(postgres: PostgresServer) -> AsyncIterator[Database]:
    """An open pool on an empty database."""
    made = Database(await postgres.fresh_database(), name="test")
    await made.open()
    yield made
    await made.close()
