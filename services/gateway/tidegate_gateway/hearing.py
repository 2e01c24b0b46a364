"""Listens to telemetry on the bus for the live table; what cannot be read is counted and passed over."""

from __future__ import annotations

import msgspec
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from tidegate_events.subjects import TELEMETRY_SUBJECTS
from tidegate_events.telemetry import decode

from tidegate_gateway.live import Live

UNREADABLE_LOGGED_EVERY = 1000

log = structlog.get_logger()


async def hear(client: Client, live: Live) -> None:
    """Feed `live` from now on, for as long as the connection lasts (it renews its subscriptions itself)."""
    unreadable = 0

    async def on_message(message: Msg) -> None:
        nonlocal unreadable
        try:
            live.hear(decode(message.data))
        except msgspec.MsgspecError as error:
            if unreadable % UNREADABLE_LOGGED_EVERY == 0:
                log.warning("samples_unreadable", subject=message.subject, error=str(error), count=unreadable + 1)
            unreadable += 1

    for subject in TELEMETRY_SUBJECTS:
        await client.subscribe(subject, cb=on_message)
