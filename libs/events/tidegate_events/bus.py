"""Connecting to the bus: one way for every service, with bounded first tries and endless reconnects."""

from __future__ import annotations

import msgspec
import nats.errors
import structlog
from nats.aio.client import Client

CONNECT_TRIES_MAX = 75
COMMAND_TRIES_MAX = 3
RECONNECT_WAIT_SECONDS = 0.2
PING_INTERVAL_SECONDS = 5

log = structlog.get_logger()


class BusSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the bus is and who we are there. `url`: of a cluster the addresses of several servers, comma-separated."""

    url: str = "nats://127.0.0.1:4222"
    user: str = ""
    password: str = ""
    name: str = "tidegate"


class BusUnreachableError(Exception):
    """No server answered at the address within the bound."""


async def connect(settings: BusSettings, tries_max: int | None = None) -> Client:
    """Return a connection that heals itself for ever; raise BusUnreachableError if the first one never comes.

    A service waits for a bus that starts beside it, and logs why; a command names fewer tries, and is told at the end.
    """
    patient = tries_max is None
    tries = CONNECT_TRIES_MAX if tries_max is None else tries_max
    client, connected, refused = Client(), False, ""

    async def on_disconnected() -> None:
        if not client.is_closed:  # a good-bye of our own is no news
            log.warning("bus_disconnected", url=settings.url)

    async def on_reconnected() -> None:
        log.info("bus_reconnected", url=settings.url)

    async def on_error(error: Exception) -> None:
        nonlocal refused
        if connected or (patient and repr(error) != refused):  # of the first tries each reason once
            log.warning("bus_error", error=repr(error))
        refused = repr(error)

    try:
        await client.connect(
            settings.url.split(","),
            name=settings.name,
            user=settings.user or None,
            password=settings.password or None,
            connect_timeout=2,
            allow_reconnect=True,
            max_reconnect_attempts=tries,
            reconnect_time_wait=RECONNECT_WAIT_SECONDS,  # type: ignore[arg-type]  # it is only slept for
            ping_interval=PING_INTERVAL_SECONDS,
            max_outstanding_pings=2,
            disconnected_cb=on_disconnected,
            reconnected_cb=on_reconnected,
            error_cb=on_error,
        )
    except (OSError, TimeoutError, nats.errors.Error) as error:
        why = refused or repr(client.last_error)
        raise BusUnreachableError(f"no bus at {settings.url} after {tries} tries: {why}") from error
    connected = True
    # The client counts its first tries by the same option as reconnects: bounded until here, endless from here on.
    client.options["max_reconnect_attempts"] = -1
    return client


async def close(client: Client) -> None:
    """Close the connection; that it was broken, and something waited to be sent on it, is no reason to end badly."""
    try:
        await client.close()
    except (OSError, RuntimeError) as error:  # what a transport says that is closed already, by the kind of loop
        log.info("bus_was_away_at_the_end", why=repr(error))
