"""What the stack consists of: for each service its command, its settings and how to see that it is ready."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

import httpx
import msgspec

from tidegate_local.bus import INSTANCE, Bus
from tidegate_local.home import LOOPBACK, NODE, Home, write_private
from tidegate_local.service import ReadyCheck, ServiceSpec

GATEWAY_PORT_PREFERRED = 7433
PROBE_SECONDS_MAX = 2.0
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
            "TIDEGATE_NATS_URL": bus.url,
            "TIDEGATE_NATS_USER": name,
            "TIDEGATE_NATS_PASSWORD": bus.passwords[name],
            "TIDEGATE_DATA_DIR": str(home.root / "gateway"),
            "TIDEGATE_SECRETS_DIR": str(home.secrets_dir),
            "TIDEGATE_INPUT_ROOTS": str(home.inputs_dir),
            "TIDEGATE_OUTPUT_ROOTS": str(home.outputs_dir),
        }
    return env


def executor_command(purpose: str, options: StackOptions, bus: Bus | None = None, gateway_port: int = 0) -> list[str]:
    """Return the node agent's command for `purpose` (run, probe, sweep), having written its settings.

    Each purpose has a file of its own: a look at a running stack must not change what it is started with again.
    The password is not in it; that goes by the environment.
    """
    home = Home(options.home)
    file = home.executor_settings(purpose)
    settings: dict[str, Any] = {
        "node": NODE,
        "data_dir": str(home.node_dir),
        "hot_dir": str(home.hot_dir),
        "secrets_dir": str(home.secrets_dir),
        "input_roots": [str(home.inputs_dir)],
        "output_roots": [str(home.outputs_dir)],
        "offer_trusted": not options.unisolated,
        "offer_unisolated": options.unisolated,
        "cpu_millis": options.cpu_millis,
        "memory_mib": options.memory_mib,
    }
    if bus is not None:
        settings["bus"] = {"url": bus.url, "user": "executor", "name": f"tidegate-executor-{NODE}"}
        settings["gateway_url"] = f"http://{LOOPBACK}:{gateway_port}"
    write_private(file, msgspec.json.format(msgspec.json.encode(settings), indent=2))
    verb = [] if purpose == "run" else [purpose]
    return [console_script("tidegate-executor"), *verb, "--settings", str(file)]


def bus_client(name: str, options: StackOptions, bus: Bus, gateway_port: int) -> ServiceSpec:
    """Return one of Tidegate's own services."""
    ready_file = Home(options.home).ready_file(name)
    argv = [console_script(f"tidegate-{name}")]
    if name == "executor":
        argv = executor_command("run", options, bus, gateway_port)
    return ServiceSpec(
        name=name,
        argv=tuple(argv),
        env=service_env(name, options, bus, gateway_port),
        is_ready=_answers(gateway_port) if name == "gateway" else _exists(ready_file),
        before_start=lambda: ready_file.unlink(missing_ok=True),
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
