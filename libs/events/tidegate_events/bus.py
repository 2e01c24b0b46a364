"""Connecting to the bus: one way for every service, with bounded first tries and endless reconnects."""

from __future__ import annotations

import asyncio

import msgspec
import nats
import nats.errors
import structlog
from nats.aio.client import Client

CONNECT_TRIES_MAX = 60
CONNECT_WAIT_SECONDS = 0.25
RECONNECT_WAIT_SECONDS = 0.2
PING_INTERVAL_SECONDS = 5

log = structlog.get_logger()


class BusSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the bus is and who we are there."""

    url: str = "nats://127.0.0.1:4222"
    user: str = ""
    password: str = ""
    name: str = "tidegate"


class BusUnreachableError(Exception):
    """No server answered at the address within the bound."""


async def connect(settings: BusSettings) -> Client:
    """Return a connection that heals itself for ever; raise BusUnreachableError if the first one never comes."""

    async def on_disconnected() -> None:
        log.warning("bus_disconnected", url=settings.url)

    async def on_reconnected() -> None:
        log.info("bus_reconnected", url=settings.url)

    async def on_error(error: Exception) -> None:
        log.warning("bus_error", error=repr(error))

    for _ in range(CONNECT_TRIES_MAX):
        try:
            return await nats.connect(
                settings.url,
                name=settings.name,
                user=settings.user or None,
                password=settings.password or None,
                connect_timeout=2,
                allow_reconnect=True,
                max_reconnect_attempts=-1,
                reconnect_time_wait=RECONNECT_WAIT_SECONDS,
                ping_interval=PING_INTERVAL_SECONDS,
                max_outstanding_pings=2,
                disconnected_cb=on_disconnected,
                reconnected_cb=on_reconnected,
                error_cb=on_error,
            )
        except (OSError, TimeoutError, nats.errors.Error) as error:
            last = error
            await asyncio.sleep(CONNECT_WAIT_SECONDS)
    raise BusUnreachableError(f"no bus at {settings.url} after {CONNECT_TRIES_MAX} tries: {last!r}")
