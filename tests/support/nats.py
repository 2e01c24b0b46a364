"""A real nats-server for tests: on loopback, on a store of its own, killed by its pid and never by name."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

READY_TRIES_MAX = 200
READY_WAIT_SECONDS = 0.05
STOP_WAIT_SECONDS = 10

SERVER = Path(sys.executable).parent / "nats-server"

_CONFIG = """\
server_name: "test"
host: "127.0.0.1"
port: {port}
max_payload: 1MB
jetstream {{
  store_dir: "{store}"
  sync_interval: always
}}
"""


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class NatsServer:
    """One server whose store and port outlive its processes, so that it can be killed and come back as itself."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self.log_path = directory / "nats-server.log"
        self._config = directory / "nats-server.conf"
        self._config.write_text(_CONFIG.format(port=self.port, store=directory / "jetstream"))
        self._argv = [str(SERVER), "-c", str(self._config)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Return the pid of the process that runs now."""
        if self._process is None:
            raise RuntimeError("the server does not run")
        return self._process.pid

    async def start(self) -> None:
        """Start the process and return when it takes clients with JetStream recovered."""
        if self._process is not None:
            raise RuntimeError(f"the server runs already, as {self._process.pid}")
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - a fork of milliseconds, and stop() works without a loop
                self._argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        for _ in range(READY_TRIES_MAX):
            if self._process.poll() is not None:
                break
            if await self._has_jetstream():
                return
            await asyncio.sleep(READY_WAIT_SECONDS)
        self.stop()
        raise RuntimeError(f"nats-server did not get ready: {self.log_path.read_text()[-2000:]}")

    async def _has_jetstream(self) -> bool:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        try:
            greeting = await reader.readline()
            return bool(greeting.startswith(b"INFO ") and json.loads(greeting[5:]).get("jetstream"))
        finally:
            writer.close()

    def kill9(self) -> None:
        """Kill the process where it stands, as a power cut would."""
        self._end(signal.SIGKILL)

    async def restart(self) -> None:
        """Kill it if it runs, and start it on the same store and port."""
        if self._process is not None:
            self.kill9()
        await self.start()

    def stop(self) -> None:
        """End the process in good order; nothing happens if none runs."""
        if self._process is not None:
            self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            raise RuntimeError("the server does not run")
        if process.poll() is None:
            os.kill(process.pid, how)
        try:
            process.wait(STOP_WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
