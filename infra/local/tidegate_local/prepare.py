"""Prepares bus and database for services that something else starts: `python -m tidegate_local.prepare`.

Makes the bus's streams and the database's logins, and goes on looking after them, because a stream in memory is gone
when the bus restarts. Settings by environment alone: TIDEGATE_NATS_PORT, TIDEGATE_POSTGRES_PORT, both on loopback, and
TIDEGATE_PASSWORD_<LOGIN> for each login.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping

import asyncpg
import structlog
from tidegate_events.process import log_as, run_until_signalled, say_ready

from tidegate_local import bus, database, postgres
from tidegate_local.bus import Bus
from tidegate_local.database import READERS, WRITERS, Database
from tidegate_local.home import LOOPBACK
from tidegate_local.permissions import ADMIN, publish_permissions
from tidegate_local.topology import INSTANCE, NATS, ONE_OF_EACH

LOOK_SECONDS = 5.0
CONNECT_SECONDS_MAX = 5.0
EXIT_USAGE = 2

log = structlog.get_logger()


def _password(environ: Mapping[str, str], login: str) -> str:
    """Return the password of a login. Raises LookupError, which names the variable."""
    variable = f"TIDEGATE_PASSWORD_{login.upper()}"
    if not environ.get(variable):
        raise LookupError(f"{variable} is not set: the password of the login {login!r} is needed")
    return environ[variable]


async def _serve(made_bus: Bus, made_database: Database, superuser_password: str) -> None:
    async def connect() -> asyncpg.Connection:
        return await asyncpg.connect(
            host=LOOPBACK,
            port=made_database.port,
            user=postgres.SUPERUSER,
            password=superuser_password,
            database=postgres.MAINTENANCE_DATABASE,
            timeout=CONNECT_SECONDS_MAX,
            command_timeout=CONNECT_SECONDS_MAX,
        )

    (server,) = ONE_OF_EACH.processes(NATS)
    was_ready = False
    while True:
        ready = await bus.is_ready(made_bus, server) and await database.is_ready(connect, made_database)
        if ready and not was_ready:
            say_ready()
        if ready != was_ready:
            log.info("prepared" if ready else "not_prepared")
        was_ready = ready
        await asyncio.sleep(LOOK_SECONDS)


def main() -> int:
    """Prepare until SIGTERM; exit code 2 where a setting is missing."""
    environ = os.environ
    log_as("prepare", INSTANCE)
    try:
        made_bus = Bus(
            ports=(int(environ["TIDEGATE_NATS_PORT"]),),
            passwords={login: _password(environ, login) for login in (ADMIN, *publish_permissions(ONE_OF_EACH))},
        )
        made_database = Database(
            port=int(environ["TIDEGATE_POSTGRES_PORT"]),
            passwords={login: _password(environ, login) for login in (*WRITERS, *READERS)},
        )
    except (LookupError, ValueError) as error:
        log.error("settings_refused", error=str(error))
        return EXIT_USAGE
    run_until_signalled(lambda: _serve(made_bus, made_database, made_bus.passwords[ADMIN]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
