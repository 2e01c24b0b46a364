"""What the stack consists of: for each service its command, its settings and how to see that it is ready."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import httpx
import msgspec

from tidegate_local.bus import INSTANCE, Bus
from tidegate_local.home import LOOPBACK, NODE, Home
from tidegate_local.service import READY_SECONDS_MAX, ReadyCheck, ServiceSpec

GATEWAY_PORT_PREFERRED = 7433
PROBE_SECONDS_MAX = 2.0
# Before its first start the node agent reads every file of the host image (gigabytes) to name it by its digest.
EXECUTOR_READY_SECONDS_MAX = 300.0
NATS = "nats"

# Started after the bus, all at once; stopped in this order: nothing new comes in, nothing is placed, nothing runs.
STOP_ORDER = ("gateway", "scheduler", "executor", "checkpoint", NATS)
BUS_CLIENTS = ("checkpoint", "scheduler", "executor", "gateway")


class StackOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator chose. `unisolated`: the node offers plain processes, and nothing else.

    `cpu_millis` and `memory_mib` bound what the node offers; None offers what the machine has.
    """

    home: Path
    unisolated: bool = False
    cpu_millis: int | None = None
    memory_mib: int | None = None

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
    """Return a free loopback port, `preferred` if it is one."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError(f"no free port on {LOOPBACK}")


def nats_service(home: Home, bus: Bus) -> ServiceSpec:
    """Return the bus itself."""

    async def is_ready() -> bool:
        with socket.socket() as probe:
            probe.settimeout(PROBE_SECONDS_MAX)
            return probe.connect_ex((LOOPBACK, bus.port)) == 0

    return ServiceSpec(
        name=NATS,
        argv=(console_script("nats-server"), "--config", str(home.nats_config)),
        env={"PATH": os.environ.get("PATH", ""), "TMPDIR": str(home.tmp_dir)},
        is_ready=is_ready,
        before_start=lambda: None,
    )


def common_env(options: StackOptions) -> dict[str, str]:
    """Return what every command of the stack is told, on top of the caller's own environment."""
    home = Home(options.home)
    return {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(home.tmp_dir),
        "TIDEGATE_HOME": str(home.root),
        "TIDEGATE_INSTANCE": INSTANCE,
        "TIDEGATE_SECRETS_DIR": str(home.secrets_dir),
        "TIDEGATE_INPUT_ROOTS": str(home.inputs_dir),
        "TIDEGATE_OUTPUT_ROOTS": str(home.outputs_dir),
    }


def service_env(name: str, options: StackOptions, bus: Bus, gateway_port: int) -> dict[str, str]:
    """Return the whole environment of a service: the caller's own, and its settings."""
    home = Home(options.home)
    env = {
        **common_env(options),
        "TIDEGATE_BUS_URL": bus.url,
        "TIDEGATE_BUS_USER": name,
        "TIDEGATE_BUS_PASSWORD": bus.passwords[name],
        "TIDEGATE_READY_FILE": str(home.ready_file(name)),
    }
    if name == "gateway":
        env |= {
            "TIDEGATE_HOST": LOOPBACK,
            "TIDEGATE_PORT": str(gateway_port),
            "TIDEGATE_DATA_DIR": str(home.root / "gateway"),
        }
    if name == "executor":
        env |= {**executor_env(options), "TIDEGATE_GATEWAY_URL": f"http://{LOOPBACK}:{gateway_port}"}
    return env


def executor_env(options: StackOptions) -> dict[str, str]:
    """Return what the node agent's commands are told, besides the common part."""
    env = {
        "TIDEGATE_NODE": NODE,
        "TIDEGATE_LEVELS": options.level,
        "TIDEGATE_CGROUP_NAME": Home(options.home).cgroup_name,
    }
    if options.cpu_millis is not None:
        env["TIDEGATE_CPU_MILLIS"] = str(options.cpu_millis)
    if options.memory_mib is not None:
        env["TIDEGATE_MEMORY_MIB"] = str(options.memory_mib)
    return env


def bus_client(name: str, options: StackOptions, bus: Bus, gateway_port: int) -> ServiceSpec:
    """Return one of Tidegate's own services."""
    ready_file = Home(options.home).ready_file(name)
    return ServiceSpec(
        name=name,
        argv=(console_script(f"tidegate-{name}"),),
        env=service_env(name, options, bus, gateway_port),
        is_ready=_answers(gateway_port) if name == "gateway" else _exists(ready_file),
        before_start=lambda: ready_file.unlink(missing_ok=True),
        ready_seconds_max=EXECUTOR_READY_SECONDS_MAX if name == "executor" else READY_SECONDS_MAX,
    )


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
