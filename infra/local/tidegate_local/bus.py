"""The stack's bus: where its servers listen, their configuration, and how to see that one of them is ready."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path
from typing import Any

import msgspec
import nats.errors
import structlog
from nats.js.api import StreamInfo
from tidegate_events.bus import BusSettings, BusUnreachableError, connect
from tidegate_events.journal.base import JournalError
from tidegate_events.journal.generations import generations

from tidegate_local import streams
from tidegate_local.home import LOOPBACK, Home, write_private
from tidegate_local.permissions import ADMIN, publish_permissions, users
from tidegate_local.topology import NATS, ONE_OF_EACH, Process, Topology

PASSWORD_BYTES = 24
PROBE_SECONDS_MAX = 2.0
CLUSTER = "tidegate"
ROUTE_LOGIN = "route"

log = structlog.get_logger()


class Bus(msgspec.Struct, frozen=True, kw_only=True):
    """Where the bus's servers listen for clients and for each other, and the password of each login."""

    ports: tuple[int, ...]
    route_ports: tuple[int, ...] = ()
    passwords: dict[str, str]
    route_password: str = ""
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
        "port": bus.ports[index],
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
    """Say whether the server answers, the bus has its streams, and the server its copy of the journal.

    Streams are looked after at every start of a server: one that lives in memory is forgotten with all that was in it.
    """
    with socket.socket() as probe:
        probe.settimeout(PROBE_SECONDS_MAX)
        if probe.connect_ex((LOOPBACK, bus.ports[max(0, server.number - 1)])):
            return False
    try:
        client = await connect(bus.login(ADMIN))
        try:
            await streams.create(client, journal_bytes=bus.journal_bytes, replicas=len(bus.ports), archive=archive)
            newest = (await generations(client))[-1]
            return _holds(server, await client.jetstream().stream_info(newest.stream))
        finally:
            await client.close()
    except (BusUnreachableError, JournalError, nats.errors.Error, OSError) as error:
        log.warning("bus_not_ready", server=server.name, error=repr(error))
        return False


def _holds(server: Process, stream: StreamInfo) -> bool:
    """Say whether the server leads the stream or has all of it; of a single server that is not asked."""
    if not server.number:
        return True
    name, cluster = server_name(server), stream.cluster
    if cluster is None:
        return False
    return cluster.leader == name or any(
        replica.name == name and replica.current and not replica.offline for replica in cluster.replicas or ()
    )
