"""The stack's bus: nats-server's configuration, one login per service, and the streams.

Permissions are per writer: a service may publish only what it is the writer of. Only the stack's own login may make,
change or delete a stream, and the journal itself refuses deletes and purges to everybody.
"""

from __future__ import annotations

import secrets
import socket
from pathlib import Path
from typing import Any

import msgspec
import nats.errors
import structlog
from nats.aio.client import Client
from nats.js.api import DiscardPolicy, StorageType, StreamConfig
from nats.js.errors import BadRequestError
from tidegate_events import telemetry
from tidegate_events.bus import BusSettings, BusUnreachableError, connect
from tidegate_events.journal.base import JournalError
from tidegate_events.journal.nats import NatsJournal
from tidegate_events.subjects import DECISION, JOURNAL_STREAM, TELEMETRY_STREAM, USER_STREAM, USER_SUBJECTS, fact

from tidegate_local.home import LOOPBACK, Home, write_private

JOURNAL_BYTES_MAX = 1024**3
USER_BYTES_MAX = 64 * 1024**2
USER_AGE_SECONDS_MAX = 24 * 3600
USER_MESSAGES_PER_TENANT_MAX = 100_000
# Asked to create a stream that exists, the server wants room for it a second time before it compares the two.
STORE_BYTES_MAX = 2 * (JOURNAL_BYTES_MAX + USER_BYTES_MAX)
TELEMETRY_BYTES_MAX = 64 * 1024**2
MEMORY_STORE_BYTES_MAX = 2 * TELEMETRY_BYTES_MAX
PASSWORD_BYTES = 24
PROBE_SECONDS_MAX = 2.0

log = structlog.get_logger()

ADMIN = "stack"
OPERATOR = "operator"
# Instance names on one machine: the subjects a service may write follow from them.
INSTANCE = "local"


def publish_permissions(node: str) -> dict[str, list[str]]:
    """Return what each login may publish, besides reading the journal."""
    return {
        "scheduler": [DECISION, "tg.order.>", "tg.ask.>"],
        "executor": [fact("node", node), f"tg.live.{node}", "tg.user.>", f"tg.telemetry.{node}", "tg.ask.>"],
        "gateway": [fact("gateway", INSTANCE), "tg.ask.>"],
        "checkpoint": [fact("checkpoint", INSTANCE), "tg.ask.>"],
        "projector": ["tg.ask.>"],
        "metrics": [fact("metrics", INSTANCE), "tg.ask.>"],
        OPERATOR: ["tg.ask.>"],
    }


def reading(stream: str) -> list[str]:
    """Return the calls of the JetStream API that reading a stream needs (no call there changes what it holds)."""
    calls = ("STREAM.INFO", "STREAM.MSG.GET", "CONSUMER.INFO", "CONSUMER.DELETE", "CONSUMER.MSG.NEXT")
    names = [f"$JS.API.{call}.{stream}" for call in calls[:2]]
    names += [f"$JS.API.{call}.{stream}.>" for call in (*calls[2:], "CONSUMER.CREATE", "DIRECT.GET")]
    return [*names, f"$JS.API.DIRECT.GET.{stream}", f"$JS.ACK.{stream}.>", f"$JS.FC.{stream}.>"]


class Bus(msgspec.Struct, frozen=True, kw_only=True):
    """Where the bus listens, and the password of each login."""

    port: int
    passwords: dict[str, str]

    def __repr__(self) -> str:
        return f"Bus(port={self.port}, logins={sorted(self.passwords)})"

    @property
    def url(self) -> str:
        """Return the address that clients use."""
        return f"nats://{LOOPBACK}:{self.port}"

    def login(self, user: str) -> BusSettings:
        """Return how `user` connects."""
        return BusSettings(url=self.url, user=user, password=self.passwords[user], name=f"tidegate-{user}")


def new_bus(port: int, node: str) -> Bus:
    """Return a bus at `port` with fresh passwords."""
    users = (ADMIN, *publish_permissions(node))
    return Bus(port=port, passwords={user: secrets.token_urlsafe(PASSWORD_BYTES) for user in users})


def server_config(bus: Bus, store_dir: Path, node: str) -> dict[str, Any]:
    """Return nats-server's configuration; its format takes JSON."""
    streams = (JOURNAL_STREAM, USER_STREAM, TELEMETRY_STREAM)
    common = ["$JS.API.INFO", *(call for stream in streams for call in reading(stream))]
    users: list[dict[str, Any]] = [{"user": ADMIN, "password": bus.passwords[ADMIN]}]
    for user, subjects in publish_permissions(node).items():
        permissions = {
            "publish": {"allow": [*subjects, *common]},
            "subscribe": {"allow": [">"]},
            "allow_responses": {"max": 1, "expires": "60s"},
        }
        users.append({"user": user, "password": bus.passwords[user], "permissions": permissions})
    return {
        "server_name": "tidegate-local",
        "host": LOOPBACK,
        "port": bus.port,
        "max_payload": 1024**2,
        "jetstream": {
            "store_dir": str(store_dir),
            # The default acknowledges before fsync and loses acknowledged events in a power cut.
            "sync_interval": "always",
            "max_file_store": STORE_BYTES_MAX,
            "max_memory_store": MEMORY_STORE_BYTES_MAX,
        },
        "authorization": {"users": users},
    }


def write_config(home: Home, bus: Bus, node: str) -> None:
    """Write the configuration, readable by its owner alone: it holds every password."""
    config = server_config(bus, home.nats_dir, node)
    write_private(home.nats_config, msgspec.json.format(msgspec.json.encode(config), indent=2))


async def create_streams(bus: Bus) -> None:
    """Create the streams where they are missing, with the stack's own login.

    Needed after every start of the server: one that lives in memory is forgotten with all that was in it.
    """
    client = await connect(bus.login(ADMIN))
    try:
        await NatsJournal(client).ensure_stream(max_bytes=JOURNAL_BYTES_MAX)
        await _ensure(client, _user_stream())
        await _ensure(client, StreamConfig.from_response(telemetry.stream_config(max_bytes=TELEMETRY_BYTES_MAX)))
    finally:
        await client.close()


def _user_stream() -> StreamConfig:
    return StreamConfig(
        name=USER_STREAM,
        subjects=list(USER_SUBJECTS),
        storage=StorageType.FILE,
        discard=DiscardPolicy.OLD,
        max_bytes=USER_BYTES_MAX,
        max_age=USER_AGE_SECONDS_MAX,
        max_msgs_per_subject=USER_MESSAGES_PER_TENANT_MAX,
    )


async def _ensure(client: Client, config: StreamConfig) -> None:
    try:
        await client.jetstream().add_stream(config)
    except BadRequestError as error:
        # Another configuration of an earlier version: bounds are the stack's own to change.
        if error.err_code != 10058:
            raise
        await client.jetstream().update_stream(config)


async def is_ready(bus: Bus) -> bool:
    """Say whether the server answers, and has its streams."""
    with socket.socket() as probe:
        probe.settimeout(PROBE_SECONDS_MAX)
        if probe.connect_ex((LOOPBACK, bus.port)):
            return False
    try:
        await create_streams(bus)
    except (BusUnreachableError, JournalError, nats.errors.Error, OSError) as error:
        log.warning("bus_not_ready", error=repr(error))
        return False
    return True
