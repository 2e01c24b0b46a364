"""The stack's database: one login for each service that uses it, with no more rights than it needs.

Projector and metrics write, as one owner, so that each can migrate and partition what is there; gateway and operator
only read. Like those on the bus, passwords are fresh at every start.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable

import asyncpg
import msgspec
import structlog

from tidegate_local.home import LOOPBACK

DATABASE = "tidegate"
OWNER = "tidegate"
OPERATOR = "operator"
WRITERS = ("projector", "metrics")
READERS = ("gateway", OPERATOR)
LOGIN_CONNECTIONS_MAX = 16
PASSWORD_BYTES = 24

log = structlog.get_logger()

Connect = Callable[[], Awaitable[asyncpg.Connection]]


class Database(msgspec.Struct, frozen=True, kw_only=True):
    """Where the database listens, and the password of each login."""

    port: int
    passwords: dict[str, str]

    def __repr__(self) -> str:
        return f"Database(port={self.port}, logins={sorted(self.passwords)})"

    def url(self, login: str) -> str:
        """Return how `login` connects, its password included."""
        return f"postgresql://{login}:{self.passwords[login]}@{LOOPBACK}:{self.port}/{DATABASE}"


def new_password() -> str:
    """Return a password of letters, digits, - and _, which need no quoting anywhere."""
    return secrets.token_urlsafe(PASSWORD_BYTES)


def new_database(port: int) -> Database:
    """Return a database at `port` with fresh passwords."""
    return Database(port=port, passwords={login: new_password() for login in (*WRITERS, *READERS)})


async def is_ready(connect: Connect, database: Database) -> bool:
    """Say whether the server answers, and has all of its logins."""
    try:
        await create_logins(connect, database)
    except asyncpg.CannotConnectNowError:
        return False  # going through its log
    except (OSError, TimeoutError):
        return False  # not there yet
    except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        log.warning("database_not_ready", error=repr(error))
        return False
    return True


async def create_logins(connect: Connect, database: Database) -> None:
    """Create the database and its logins where they are missing, and set their passwords. Idempotent.

    `connect` is the superuser's. Raises OSError, TimeoutError, asyncpg.PostgresError.
    """
    connection = await connect()
    try:
        await _create_role(connection, OWNER, "NOLOGIN")
        if not await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", DATABASE):
            await connection.execute(f"CREATE DATABASE {DATABASE} OWNER {OWNER}")
        for login, password in database.passwords.items():
            await _create_role(connection, login, "LOGIN")
            await connection.execute(
                f"ALTER ROLE {login} CONNECTION LIMIT {LOGIN_CONNECTIONS_MAX} PASSWORD '{password}'"
            )
        for login in WRITERS:
            # What one of them makes belongs to all of them.
            await connection.execute(f"GRANT {OWNER} TO {login}; ALTER ROLE {login} SET role = {OWNER}")
        for login in READERS:
            await connection.execute(
                f"GRANT pg_read_all_data TO {login}; ALTER ROLE {login} SET default_transaction_read_only = on"
            )
    finally:
        await connection.close()


async def _create_role(connection: asyncpg.Connection, name: str, can_login: str) -> None:
    if not await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", name):
        await connection.execute(f"CREATE ROLE {name} {can_login} NOSUPERUSER NOCREATEDB NOCREATEROLE")
