"""The stack's bus: where its servers listen, their configuration, and how to see that one is ready, or stuck."""

from __future__ import annotations

import asyncio
import secrets
import socket
from pathlib import Path
from typing import Any

import msgspec
import nats.errors
import structlog
from tidegate_events.bus import BusSettings, BusUnreachableError, connect
from tidegate_events.journal.base import JournalError
from tidegate_events.journal.health import has_room, is_write_error

from tidegate_local import streams
from tidegate_local.home import LOOPBACK, Home, write_private
from tidegate_local.permissions import ADMIN, publish_permissions, users
from tidegate_local.topology import NATS, ONE_OF_EACH, Process, Topology

PASSWORD_BYTES = 24
PROBE_SECONDS_MAX = 2.0
CLUSTER = "tidegate"
ROUTE_LOGIN = "route"
HEALTH_LOGIN = "health"
SYSTEM_ACCOUNT = "SYSTEM"
HEALTH_SECONDS_MAX = 3.0

log = structlog.get_logger()


class Bus(msgspec.Struct, frozen=True, kw_only=True):
    """Where the bus's servers listen for clients and for each other, and the password of each login."""

    ports: tuple[int, ...]
    route_ports: tuple[int, ...] = ()
    passwords: dict[str, str]
    route_password: str = ""
    health_password: str = ""
    topology: Topology = ONE_OF_EACH
    journal_bytes: int = streams.JOURNAL_BYTES_MAX

    def __repr__(self) -> str:
        return f"Bus(ports={self.ports}, logins={sorted(self.passwords)})"

    @property
    def url(self) -> str:
        """Return the addresses that clients use, separated by commas."""
        return ",".join(f"nats://{LOOPBACK}:{port}" for port in self.ports)

    def login(self, user: str) -> BusSettings:
        """Return how `user` connects."""
        return BusSettings(url=self.url, user=user, password=self.passwords[user], name=f"tidegate-{user}")


def new_bus(ports: tuple[int, ...], route_ports: tuple[int, ...] = (), topology: Topology = ONE_OF_EACH) -> Bus:
    """Return a bus at `ports` with fresh passwords; several servers reach each other at `route_ports`."""
    logins = (ADMIN, *publish_permissions(topology))
    return Bus(
        ports=ports,
        route_ports=route_ports,
        passwords={login: secrets.token_urlsafe(PASSWORD_BYTES) for login in logins},
        route_password=secrets.token_urlsafe(PASSWORD_BYTES),
        health_password=secrets.token_urlsafe(PASSWORD_BYTES),
        topology=topology,
    )


def server_name(server: Process) -> str:
    """Return what the server calls itself in the cluster."""
    return f"tidegate-{server.instance}"


def store_dir(home: Home, server: Process) -> Path:
    """Return where a server keeps its streams: of several each has its own."""
    return home.nats_dir / server.instance if server.number else home.nats_dir


def config_file(home: Home, server: Process) -> Path:
    """Return a server's configuration file."""
    return home.run_dir / f"{server.name}.conf"


def server_config(bus: Bus, server: Process, directory: Path) -> dict[str, Any]:
    """Return a nats-server's configuration; its format takes JSON."""
    index = max(0, server.number - 1)
    config: dict[str, Any] = {
        "server_name": server_name(server),
        "host": LOOPBACK,
        "port": _port(bus, server),
        "max_payload": 1024**2,
        "jetstream": {
            "store_dir": str(directory),
            # The default acknowledges before fsync and loses acknowledged events in a power cut.
            "sync_interval": "always",
            "max_file_store": streams.store_bytes_max(bus.journal_bytes),
            "max_memory_store": streams.MEMORY_STORE_BYTES_MAX,
        },
        "authorization": {"users": users(bus.topology, bus.passwords)},
    }
    if bus.health_password:
        asker = {"user": HEALTH_LOGIN, "password": bus.health_password}
        config["accounts"] = {SYSTEM_ACCOUNT: {"users": [asker]}}
        config["system_account"] = SYSTEM_ACCOUNT
    if len(bus.ports) > 1:
        config["cluster"] = {
            "name": CLUSTER,
            "host": LOOPBACK,
            "port": bus.route_ports[index],
            "no_advertise": True,  # clients know all addresses
            "authorization": {"user": ROUTE_LOGIN, "password": bus.route_password},
            "routes": [
                f"nats-route://{ROUTE_LOGIN}:{bus.route_password}@{LOOPBACK}:{port}"
                for port in bus.route_ports
                if port != bus.route_ports[index]
            ],
        }
    return config


def write_config(home: Home, bus: Bus) -> None:
    """Write each server's configuration, readable by its owner alone: it holds every password."""
    for server in bus.topology.processes(NATS):
        directory = store_dir(home, server)
        directory.mkdir(exist_ok=True, mode=0o700)
        config = server_config(bus, server, directory)
        write_private(config_file(home, server), msgspec.json.format(msgspec.json.encode(config), indent=2))


async def is_ready(bus: Bus, server: Process, archive: Path | None = None) -> bool:
    """Say whether the server answers, the bus has its streams, and the server holds all of its copies of them.

    Streams are looked after at every start of a server: one that lives in memory is forgotten with all that was in it.
    """
    if not _listens(_port(bus, server)):
        return False
    try:
        client = await connect(bus.login(ADMIN))
        try:
            await streams.create(client, journal_bytes=bus.journal_bytes, replicas=len(bus.ports), archive=archive)
        finally:
            await client.close()
        if not bus.health_password or (health := await _health(bus, server)).is_well:
            return True
    except (BusUnreachableError, JournalError, nats.errors.Error, TimeoutError, OSError) as error:
        log.warning("bus_not_ready", server=server.name, error=repr(error))
        return False
    log.info("bus_not_ready", server=server.name, error=health.error)
    return False


async def is_stuck(bus: Bus, server: Process, directory: Path) -> bool:
    """Say whether the server has stopped storing and could store again if it were started anew.

    One whose disk was full never tries again by itself: its streams answer, but no append. It is worth a restart once
    there is room.
    """
    if not _listens(_port(bus, server)):
        return False
    try:
        health = await _health(bus, server)
    except (BusUnreachableError, nats.errors.Error, TimeoutError, OSError):
        return False  # it does not answer at all: no sign of a full disk
    if not is_write_error(health.error):
        return False
    room = await asyncio.to_thread(has_room, directory)
    log.error("bus_stores_nothing", server=server.name, error=health.error, has_room=room)
    return room


class _Health(msgspec.Struct, frozen=True):
    """What a server says of itself: "ok", or why not."""

    status: str = ""
    error: str = ""

    @property
    def is_well(self) -> bool:
        return self.status == "ok"


class _Answer(msgspec.Struct, frozen=True):
    data: _Health


async def _health(bus: Bus, server: Process) -> _Health:
    """Ask the server itself, by the system account, which sees nothing of what streams hold."""
    url = f"nats://{LOOPBACK}:{_port(bus, server)}"
    login = BusSettings(url=url, user=HEALTH_LOGIN, password=bus.health_password, name="tidegate-health")
    only = {"server_name": server_name(server), "exact_match": True}
    async with asyncio.timeout(HEALTH_SECONDS_MAX):
        client = await connect(login)
        try:
            body = msgspec.json.encode(only)
            answer = await client.request("$SYS.REQ.SERVER.PING.HEALTHZ", body, timeout=HEALTH_SECONDS_MAX)
            return msgspec.json.decode(answer.data, type=_Answer).data
        finally:
            await client.close()


def _port(bus: Bus, server: Process) -> int:
    return bus.ports[max(0, server.number - 1)]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(PROBE_SECONDS_MAX)
        return not probe.connect_ex((LOOPBACK, port))
