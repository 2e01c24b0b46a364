"""The real command on a real bus: one job for one key across crashes of the gateway, and what it says without a bus."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from tidegate_events.bus import BusSettings, connect
from tidegate_events.journal.nats import NatsJournal

READY_SECONDS_MAX = 20.0
JOURNAL_BYTES_MAX = 64 * 1024 * 1024


class GatewayProcess:
    """The installed command, with its log in a file."""

    def __init__(self, directory: Path, bus_url: str) -> None:
        self._directory = directory
        self._bus_url = bus_url
        self.log = directory / "gateway.log"
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [Path(sys.executable).parent / "tidegate-gateway", "--port", "0", "--data-dir", self._directory / "g"]
        command += ["--journal-bytes-max", str(JOURNAL_BYTES_MAX)]
        self.log.write_text("")
        with self.log.open("ab") as out:
            env = {**os.environ, "TIDEGATE_BUS_URL": self._bus_url}
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env=env)
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline:
            for line in self.lines():
                if line["event"] == "ready":
                    self.url = f"http://127.0.0.1:{line['port']}"
                    return
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)
        raise TimeoutError(self.log.read_text())

    def lines(self) -> list[dict[str, Any]]:
        """Return the log lines that are written whole; each must be JSON."""
        return [json.loads(line) for line in self.log.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def end(self, number: int) -> int:
        """Send a signal and return the exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(timeout=10)


@pytest.fixture
def gateway(tmp_path: Path, nats_server: Any) -> Iterator[GatewayProcess]:
    made = GatewayProcess(tmp_path, nats_server.url)
    made.start()
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.kill()
        made.process.wait()


def _journal_end(url: str) -> int:
    async def ask() -> int:
        client = await connect(BusSettings(url=url))
        try:
            return await NatsJournal(client).end()
        finally:
            await client.close()

    return asyncio.run(ask())


def _submit(gateway: GatewayProcess, spec: Any, key: str) -> httpx.Response:
    return httpx.post(f"{gateway.url}/v1/jobs", json=spec, headers={"idempotency-key": key}, timeout=30)


def test_one_key_is_one_job_across_crashes(gateway: GatewayProcess, nats_server: Any, valid: Any) -> None:
    first = _submit(gateway, valid, "k")
    assert first.status_code == 201, first.text
    for number in (signal.SIGKILL, signal.SIGTERM):
        code = gateway.end(number)
        assert code == (0 if number == signal.SIGTERM else -signal.SIGKILL), gateway.log.read_text()
        gateway.start()
        again = _submit(gateway, valid, "k")
        assert (again.status_code, again.json()) == (201, first.json())
        assert _submit(gateway, {**valid, "seed": 99}, "k").status_code == 409
        job = httpx.get(f"{gateway.url}/v1/jobs/{first.json()['job_id']}", timeout=30).json()
        assert (job["state"], job["trace_id"]) == ("pending", first.json()["trace_id"])
    assert _journal_end(nats_server.url) == 1
    accepted = [line for line in gateway.lines() if line["event"] == "job_accepted"]
    assert accepted[0]["job"] == first.json()["job_id"]
    assert accepted[0]["trace_id"] == first.json()["trace_id"]
    assert (accepted[0]["service"], accepted[0]["instance"]) == ("gateway", "g1")


def test_a_crash_of_the_bus_is_said_and_survived(gateway: GatewayProcess, nats_server: Any, valid: Any) -> None:
    first = _submit(gateway, valid, "k")
    nats_server.stop()
    refused = _submit(gateway, {**valid, "seed": 1}, "k2")
    assert refused.status_code == 503, refused.text
    assert refused.headers["retry-after"] == "1"
    assert "same idempotency key" in refused.json()["accepted"]
    assert httpx.get(f"{gateway.url}/healthz").status_code == 200
    assert httpx.get(f"{gateway.url}/readyz").status_code == 503
    assert httpx.get(f"{gateway.url}/v1/status", timeout=30).json()["journal"]["end"] is None
    assert _submit(gateway, {**valid, "priorty": 1}, "k3").status_code == 422
    nats_server.start()
    deadline = time.monotonic() + READY_SECONDS_MAX
    while httpx.get(f"{gateway.url}/readyz").status_code != 200:
        assert time.monotonic() < deadline, gateway.log.read_text()
        time.sleep(0.1)
    answer = None
    while time.monotonic() < deadline and (answer is None or answer.status_code == 503):
        answer = _submit(gateway, {**valid, "seed": 1}, "k2")
    assert answer is not None
    assert answer.status_code == 201, answer.text
    assert _submit(gateway, valid, "k").json() == first.json()
    jobs = httpx.get(f"{gateway.url}/v1/jobs", timeout=30).json()
    assert jobs["total"] == 2


def test_sigterm_ends_it_also_with_an_open_connection(gateway: GatewayProcess) -> None:
    with httpx.Client(base_url=gateway.url) as held:
        assert held.get("/v1/nodes").status_code == 200
        assert gateway.end(signal.SIGTERM) == 0
    assert gateway.lines()[-1]["event"] == "stopped"


def test_settings_that_cannot_be_used_end_it_at_once(tmp_path: Path) -> None:
    command = Path(sys.executable).parent / "tidegate-gateway"
    done = subprocess.run([command, "--host", "0.0.0.0"], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert "127.0.0.1" in done.stderr
    with suppress(FileNotFoundError):
        assert not (tmp_path / "gateway").exists()
