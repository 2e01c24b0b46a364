"""A bus of three real servers on loopback, from the configuration in `infra/nats/cluster`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidegate_events import bus

from tests.support.nats import SERVER, free_port

CONFIGS = Path(__file__).parents[2] / "infra" / "nats" / "cluster"
NAMES = ("n1", "n2", "n3")
READY_SECONDS_MAX = 60.0
READY_WAIT_SECONDS = 0.1
STOP_SECONDS_MAX = 10.0
STORE_BYTES_MAX = "512MB"


class NatsCluster:
    """Three servers whose stores and ports outlive their processes."""

    def __init__(self, directory: Path, enter: Mapping[str, list[str]] | None = None) -> None:
        """Lay out a cluster; `enter` is what starts a server's process, where that is not itself."""
        self._directory = directory
        self._enter = dict(enter or {})
        self._ports = {name: free_port() for name in NAMES}
        self._routes = {name: free_port() for name in NAMES}
        self._monitors = {name: free_port() for name in NAMES}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def settings(self) -> bus.BusSettings:
        """Return how the stack's own login connects, to whichever server is there."""
        url = ",".join(f"nats://127.0.0.1:{port}" for port in self._ports.values())
        return bus.BusSettings(url=url, user="stack", password="stack")

    @property
    def running(self) -> set[str]:
        """Return the servers that run."""
        return set(self._processes)

    def monitor_url(self, name: str) -> str:
        """Return where a server says how it is."""
        return f"http://127.0.0.1:{self._monitors[name]}"

    def _environment(self, name: str) -> dict[str, str]:
        store = self._directory / name
        logins = re.findall(r"\$(TIDEGATE_PASSWORD_[A-Z]+)", (CONFIGS / "authorization.conf").read_text())
        routes = [f"nats-route://route:routes@127.0.0.1:{port}" for port in self._routes.values()]
        return {
            "TIDEGATE_NATS_HOST": "127.0.0.1",
            "TIDEGATE_NATS_PORT": str(self._ports[name]),
            "TIDEGATE_NATS_ROUTE_HOST": "127.0.0.1",
            "TIDEGATE_NATS_ROUTE_PORT": str(self._routes[name]),
            "TIDEGATE_NATS_ROUTES": json.dumps(routes),
            "TIDEGATE_NATS_ROUTE_USER": "route",
            "TIDEGATE_NATS_ROUTE_PASSWORD": "routes",
            "TIDEGATE_NATS_STORE_DIR": json.dumps(str(store)),
            "TIDEGATE_NATS_STORE_BYTES": STORE_BYTES_MAX,
            "TIDEGATE_NATS_MONITOR": json.dumps(f"127.0.0.1:{self._monitors[name]}"),
            "TIDEGATE_NATS_ZONE": json.dumps(f"zone:{name}"),
            **{login: login.removeprefix("TIDEGATE_PASSWORD_").lower() for login in logins},
        }

    async def start(self) -> None:
        """Start all servers, and return when each is current with the cluster."""
        for name in NAMES:
            self.start_one(name)
        await self.ready()

    def start_one(self, name: str) -> None:
        """Start a server that does not run."""
        with (self._directory / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*self._enter.get(name, []), SERVER, "-c", CONFIGS / f"{name}.conf"],
                env={**os.environ, **self._environment(name)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def ready(self) -> None:
        """Return when each server that runs says that it is healthy: it has all that it should have."""
        async with asyncio.timeout(READY_SECONDS_MAX):
            for name in list(self._processes):
                while not await asyncio.to_thread(self._is_healthy, name):  # noqa: ASYNC110 - other processes
                    await asyncio.sleep(READY_WAIT_SECONDS)

    def _is_healthy(self, name: str) -> bool:
        try:
            with urllib.request.urlopen(f"{self.monitor_url(name)}/healthz", timeout=2) as answer:
                said: dict[str, Any] = json.loads(answer.read())
        except (urllib.error.URLError, OSError):
            return False
        return said.get("status") == "ok"

    async def copy_of(self, name: str, stream: str) -> tuple[int, int, int] | None:
        """Return first and last sequence and number of messages of a server's own copy; None where there is none."""
        url = f"{self.monitor_url(name)}/jsz?streams=true"
        try:
            with await asyncio.to_thread(urllib.request.urlopen, url, timeout=2) as answer:
                said: dict[str, Any] = json.loads(answer.read())
        except OSError:
            return None
        for account in said.get("account_details") or ():
            for each in account.get("stream_detail") or ():
                if each["name"] == stream:
                    state = each["state"]
                    return state["first_seq"], state["last_seq"], state["messages"]
        return None

    def kill9(self, name: str) -> None:
        """Kill a server where it stands."""
        self._end(name, signal.SIGKILL)

    def stop(self) -> None:
        """End what runs."""
        for name in list(self._processes):
            self._end(name, signal.SIGKILL)

    def _end(self, name: str, how: signal.Signals) -> None:
        process = self._processes.pop(name)
        if process.poll() is None:
            process.send_signal(how)
        process.wait(STOP_SECONDS_MAX)
