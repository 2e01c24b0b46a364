"""Connections to PostgreSQL: one pool, a bound on every wait, and one error for a server that is away.

A server that is away is no reason to end: the pool connects anew when it is used again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import asyncpg
import structlog

CONNECT_SECONDS_MAX = 3.0
ACQUIRE_SECONDS_MAX = 4.0
COMMAND_SECONDS_MAX = 15.0
CLOSE_SECONDS_MAX = 2.0
CONNECTIONS_MAX = 8

log = structlog.get_logger()


class Connection(Protocol):
    """What statements are run on: the part of asyncpg's connection that is used here, which has no types of its own."""

    def transaction(self, *, isolation: str | None = None, readonly: bool = False) -> AbstractAsyncContextManager[Any]:
        """Run what is inside whole or not at all; inside another one, a savepoint."""
        ...

    async def execute(self, query: str, *args: Any) -> str:
        """Run a statement, or several where there are no arguments."""
        ...

    async def executemany(self, command: str, args: Iterable[Sequence[Any]]) -> None:
        """Run a statement for each row of arguments."""
        ...

    async def fetch(self, query: str, *args: Any) -> list[Any]:
        """Return all rows."""
        ...

    async def fetchrow(self, query: str, *args: Any) -> Any:
        """Return the first row, None where there is none."""
        ...

    async def fetchval(self, query: str, *args: Any) -> Any:
        """Return the first column of the first row."""
        ...

    async def copy_records_to_table(
        self, table_name: str, *, records: Iterable[Sequence[Any]], columns: Sequence[str], schema_name: str
    ) -> str:
        """Insert rows by COPY."""
        ...


AWAY = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,  # the connection was closed below us
    asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError,  # it shuts down, starts, or cancelled the statement
    asyncpg.InsufficientResourcesError,  # too many connections, or no room on the disk
    asyncpg.TransactionRollbackError,
    asyncpg.LockNotAvailableError,
)
"""What says that trying again can help; everything else is a fault that a retry would only repeat."""

_GONE = (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError)
"""What a reader meets whose tables were dropped under it."""


class DatabaseAwayError(Exception):
    """PostgreSQL did not do it within the bound. Retriable."""


class Database:
    """A pool of connections to one database; every wait in it has a bound."""

    def __init__(self, url: str, *, name: str, command_seconds_max: float = COMMAND_SECONDS_MAX) -> None:
        """Note where the database is; `open` makes the pool, and nothing connects before it is used."""
        self._url = url
        self._name = name
        self._command_seconds_max = command_seconds_max
        self._pool: Any = None

    async def open(self) -> None:
        """Make the pool. A server that is away is noticed only by whoever asks for a connection."""
        self._pool = asyncpg.create_pool(
            self._url,
            min_size=0,
            max_size=CONNECTIONS_MAX,
            timeout=CONNECT_SECONDS_MAX,
            command_timeout=self._command_seconds_max,
            server_settings={
                "application_name": self._name,
                # The server gives up as well: a client that was killed cannot cancel what it began.
                "statement_timeout": str(int(self._command_seconds_max * 1000)),
                "lock_timeout": str(int(self._command_seconds_max * 1000)),
                "idle_in_transaction_session_timeout": str(int(self._command_seconds_max * 2000)),
            },
        )
        await self._pool

    async def close(self) -> None:
        """Close the pool, in good order where that is quick."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await pool.close()
        except (TimeoutError, *AWAY):
            pool.terminate()

    @asynccontextmanager
    async def transaction(self, *, read_only: bool = False) -> AsyncGenerator[Connection, None]:
        """Give a connection within one transaction, of one snapshot when `read_only`. Raises DatabaseAwayError."""
        isolation = "repeatable_read" if read_only else "read_committed"
        try:
            async with (
                self.connection() as connection,
                connection.transaction(isolation=isolation, readonly=read_only),
            ):
                yield connection
        except _GONE as error:
            if not read_only:
                raise
            raise DatabaseAwayError(f"the tables are being made anew: {_why(error)}") from error

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Connection, None]:
        """Give a connection. Raises DatabaseAwayError for whatever trying again can help against."""
        if self._pool is None:
            raise RuntimeError("the pool is not open")
        try:
            async with self._pool.acquire(timeout=ACQUIRE_SECONDS_MAX) as connection:
                yield connection
        except AWAY as error:
            raise DatabaseAwayError(f"PostgreSQL is away: {_why(error)}") from error


def _why(error: BaseException) -> str:
    """Return one line on an error; never the connection URL, which holds the password."""
    return f"{type(error).__name__}: {error}".split("\n", maxsplit=1)[0][:200]
