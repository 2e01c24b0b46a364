"""What the stack consists of: for each service its command, its settings and how to see that it is ready."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable
from pathlib import Path

import asyncpg
import httpx
import msgspec

from tidegate_local import bus as buses
from tidegate_local import database as logins
from tidegate_local import postgres, streams
from tidegate_local.bus import Bus, new_bus
from tidegate_local.database import Database, new_database
from tidegate_local.home import LOOPBACK, Home
from tidegate_local.service import READY_SECONDS_MAX, ReadyCheck, ServiceSpec
from tidegate_local.topology import EXECUTOR, NATS, SCHEDULER, Process, Topology

GATEWAY_PORT_PREFERRED = 7433
PROBE_SECONDS_MAX = 2.0
# Before its first start the node agent reads every file of the host image (gigabytes) to name it by its digest.
EXECUTOR_READY_SECONDS_MAX = 300.0
MIGRATE_SECONDS_MAX = 120.0
PORT_TRIES_MAX = 10
_claims: list[socket.socket] = []

# Stopped in this order: nothing new comes in, nothing is placed, nothing runs, and what ran is written down.
STOP_ORDER = (
    "gateway", SCHEDULER, EXECUTOR, "checkpoint", "metrics", "projector", "keeper", postgres.POSTGRES, NATS,
)  # fmt: skip
# Started when the bus is ready, all at once.
BUS_CLIENTS = ("checkpoint", "keeper", SCHEDULER, EXECUTOR)
# Started when the database has its newest schema, too.
DATABASE_CLIENTS = ("projector", "metrics", "gateway")


class MigrationFailedError(Exception):
    """The database's schema could not be brought up to date; the text is what the command said."""


class StackOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator chose. `unisolated`: the node offers plain processes, and nothing else.

    `cpu_millis` and `memory_mib` bound what all nodes together offer; None offers what the machine has.
    `generation_bytes` is how large one generation of the journal may become.
    """

    home: Path
    unisolated: bool = False
    cpu_millis: int | None = None
    memory_mib: int | None = None
    topology: Topology = Topology()
    generation_bytes: int = streams.JOURNAL_BYTES_MAX

    @property
    def level(self) -> str:
        """Return the isolation level that this stack offers."""
        return "unisolated" if self.unisolated else "trusted"

    def to_json(self) -> str:
        """Return the options as the supervisor takes them."""
        return msgspec.json.encode(self, enc_hook=str).decode()

    @classmethod
    def from_json(cls, text: str) -> StackOptions:
        """Return what `to_json` wrote."""
        return msgspec.json.decode(text, type=cls, dec_hook=lambda kind, value: kind(value))


def console_script(name: str) -> str:
    """Return the path of a command that was installed beside this Python."""
    return str(Path(sys.executable).with_name(name))


def free_port(preferred: int = 0) -> int:
    """Return a free loopback port, `preferred` if it is one; until this process ends no other stack takes it."""
    for wanted in (preferred, *[0] * PORT_TRIES_MAX):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, wanted))
            except OSError:
                continue
            port = int(probe.getsockname()[1])
            if _claim(port):
                return port
    raise OSError(f"no free port on {LOOPBACK}")


def _claim(port: int) -> bool:
    """Claim a port before its server listens: two stacks that start at once would both find it free.

    The claim is an abstract socket's name, which the kernel forgets with the process that holds it.
    """
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0tidegate-port-{port}")
    except OSError:
        claim.close()
        return False
    _claims.append(claim)
    return True


class Ports(msgspec.Struct, frozen=True, kw_only=True):
    """Where the stack listens, all on loopback; servers of one bus also to each other, at `nats_routes`."""

    nats: tuple[int, ...]
    nats_routes: tuple[int, ...] = ()
    postgres: int
    gateway: int
    metrics: int

    @property
    def gateway_url(self) -> str:
        """Return the address of the API."""
        return f"http://{LOOPBACK}:{self.gateway}"

    @property
    def metrics_url(self) -> str:
        """Return what Prometheus reads."""
        return f"http://{LOOPBACK}:{self.metrics}/metrics"

    def by_name(self) -> dict[str, int]:
        """Return every port by the name of who listens there."""
        named = {"postgres": self.postgres, "gateway": self.gateway, "metrics": self.metrics}
        for name, ports in (("nats", self.nats), ("nats-route", self.nats_routes)):
            numbers = [""] if len(ports) == 1 else [f"-{number}" for number in range(1, len(ports) + 1)]
            named |= {f"{name}{number}": port for number, port in zip(numbers, ports, strict=True)}
        return named


def free_ports(bus_servers: int = 1) -> Ports:
    """Return ports that nobody listens on, all different. Raises OSError."""
    routes = bus_servers if bus_servers > 1 else 0
    return Ports(
        nats=tuple(free_port() for _ in range(bus_servers)),
        nats_routes=tuple(free_port() for _ in range(routes)),
        postgres=free_port(),
        metrics=free_port(),
        gateway=free_port(GATEWAY_PORT_PREFERRED),
    )


class Wiring(msgspec.Struct, frozen=True, kw_only=True):
    """What the services of one stack are told of each other."""

    ports: Ports
    bus: Bus
    database: Database


def new_wiring(options: StackOptions) -> Wiring:
    """Return free ports and fresh passwords. Raises OSError."""
    ports = free_ports(options.topology.bus_servers)
    bus = new_bus(ports.nats, ports.nats_routes, options.topology)
    bus = msgspec.structs.replace(bus, journal_bytes=options.generation_bytes)
    return Wiring(ports=ports, bus=bus, database=new_database(ports.postgres))


def nats_service(home: Home, bus: Bus, server: Process) -> ServiceSpec:
    """Return a server of the bus."""
    return ServiceSpec(
        name=server.name,
        argv=(console_script("nats-server"), "--config", str(buses.config_file(home, server))),
        env={"PATH": os.environ.get("PATH", ""), "TMPDIR": str(home.tmp_dir)},
        is_ready=lambda: buses.is_ready(bus, server, home.archive_dir),
        is_stuck=lambda: buses.is_stuck(bus, server, buses.store_dir(home, server)),
        before_start=lambda: None,
    )


def postgres_service(home: Home, database: Database) -> ServiceSpec:
    """Return the database's server."""

    def connect() -> Awaitable[asyncpg.Connection]:
        return postgres.connect(home, database.port)

    return postgres.service(home, database.port, is_ready=lambda: logins.is_ready(connect, database))


def common_env(options: StackOptions) -> dict[str, str]:
    """Return what every command of the stack is told, on top of the caller's own environment."""
    home = Home(options.home)
    return {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(home.tmp_dir),
        "TIDEGATE_HOME": str(home.root),
        "TIDEGATE_JOURNAL_ARCHIVE_DIR": str(home.archive_dir),
        "TIDEGATE_SECRETS_DIR": str(home.secrets_dir),
        "TIDEGATE_INPUT_ROOTS": str(home.inputs_dir),
        "TIDEGATE_OUTPUT_ROOTS": str(home.outputs_dir),
    }


def service_env(process: Process, options: StackOptions, wiring: Wiring) -> dict[str, str]:
    """Return the whole environment of a service: the caller's own, and its settings."""
    home, name = Home(options.home), process.name
    bus, database, ports = wiring.bus, wiring.database, wiring.ports
    env = {
        **common_env(options),
        "TIDEGATE_INSTANCE": process.instance,
        "TIDEGATE_BUS_URL": bus.url,
        "TIDEGATE_BUS_USER": name,
        "TIDEGATE_BUS_PASSWORD": bus.passwords[name],
        "TIDEGATE_READY_FILE": str(home.ready_file(name)),
    }
    if name in database.passwords:
        env["TIDEGATE_DATABASE_URL"] = database.url(name)
    if name == "metrics":
        env["TIDEGATE_METRICS_PORT"] = str(ports.metrics)
    if name == "gateway":
        env |= {
            "TIDEGATE_HOST": LOOPBACK,
            "TIDEGATE_PORT": str(ports.gateway),
            "TIDEGATE_DATA_DIR": str(home.root / "gateway"),
        }
    if name == "keeper":
        env["TIDEGATE_GENERATION_BYTES"] = str(options.generation_bytes)
    if process.kind == EXECUTOR:
        env |= {**executor_env(process, options), "TIDEGATE_GATEWAY_URL": ports.gateway_url}
    return env


def executor_env(process: Process, options: StackOptions) -> dict[str, str]:
    """Return what the commands of one node's agent are told, besides the common part."""
    home, nodes = Home(options.home), options.topology.nodes
    env = {
        "TIDEGATE_NODE": process.instance,
        "TIDEGATE_LEVELS": options.level,
        "TIDEGATE_CGROUP_NAME": home.cgroup_name,
    }
    if nodes > 1:
        env |= {
            "TIDEGATE_CGROUP_NAME": f"{home.cgroup_name}-{process.instance}",
            "TIDEGATE_SHARE_INDEX": str(process.number - 1),
            "TIDEGATE_SHARE_COUNT": str(nodes),
            # As if nodes stood at switches in racks, so that what a gang's place means can be tried on one machine.
            "TIDEGATE_NODE_SWITCH": f"switch-{(process.number + 1) // 2}",
            "TIDEGATE_NODE_RACK": f"rack-{(process.number + 3) // 4}",
            "TIDEGATE_IMAGE_CACHE_DIR": os.environ.get("TIDEGATE_IMAGE_CACHE_DIR", str(home.root / "images")),
        }
    if options.cpu_millis is not None:
        env["TIDEGATE_CPU_MILLIS"] = str(options.cpu_millis // nodes)
    if options.memory_mib is not None:
        env["TIDEGATE_MEMORY_MIB"] = str(options.memory_mib // nodes)
    return env


def client(process: Process, options: StackOptions, wiring: Wiring) -> ServiceSpec:
    """Return one of Tidegate's own services."""
    ready_file = Home(options.home).ready_file(process.name)
    return ServiceSpec(
        name=process.name,
        argv=(console_script(f"tidegate-{process.kind}"),),
        env=service_env(process, options, wiring),
        is_ready=_answers(wiring.ports.gateway) if process.name == "gateway" else _exists(ready_file),
        before_start=lambda: ready_file.unlink(missing_ok=True),
        ready_seconds_max=EXECUTOR_READY_SECONDS_MAX if process.kind == EXECUTOR else READY_SECONDS_MAX,
    )


async def migrate(options: StackOptions, wiring: Wiring) -> None:
    """Bring the database's schema up to date. Raises MigrationFailedError."""
    (projector,) = options.topology.processes("projector")
    process = await asyncio.create_subprocess_exec(
        console_script("tidegate-projector"),
        "migrate",
        env=service_env(projector, options, wiring),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(MIGRATE_SECONDS_MAX):
            output, _ = await process.communicate()
    except (TimeoutError, asyncio.CancelledError):
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        text = output.decode(errors="replace").strip()[-2000:]
        raise MigrationFailedError(f"`tidegate-projector migrate` exited {process.returncode}: {text}")


def _exists(file: Path) -> ReadyCheck:
    async def check() -> bool:
        return file.exists()  # noqa: ASYNC240 - one look at a local file

    return check


def _answers(port: int) -> ReadyCheck:
    async def check() -> bool:
        try:
            async with httpx.AsyncClient(timeout=PROBE_SECONDS_MAX) as client:
                answer = await client.get(f"http://{LOOPBACK}:{port}/readyz")
        except httpx.HTTPError:
            return False
        return answer.status_code == httpx.codes.OK

    return check
