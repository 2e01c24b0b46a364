"""What prepares bus and database for the compose file, against a real server of each."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest
from tidegate_events import bus as connecting
from tidegate_local import bus, database, nats_config, plan, postgres
from tidegate_local.home import Home
from tidegate_local.logfile import LogFile
from tidegate_local.permissions import ADMIN, publish_permissions
from tidegate_local.service import Service
from tidegate_local.topology import NATS, ONE_OF_EACH

WAIT_SECONDS_MAX = 60.0
LOGINS = {ADMIN, *publish_permissions(ONE_OF_EACH), *database.WRITERS, *database.READERS}
PASSWORDS = {f"TIDEGATE_PASSWORD_{login.upper()}": f"p{login}" for login in LOGINS}


async def test_streams_and_logins_are_there_when_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path / "home")
    home.create()
    ports = plan.free_ports()
    monkeypatch.setattr(nats_config, "PORT", ports.nats[0])
    monkeypatch.setattr(nats_config, "STORE_DIR", home.nats_dir)
    config = bus.config_file(home, ONE_OF_EACH.processes(NATS)[0])
    config.write_text(nats_config.render())
    await postgres.initialise(home, lambda: PASSWORDS[f"TIDEGATE_PASSWORD_{ADMIN.upper()}"])
    log = LogFile(home.logs_dir / "log")
    log.follow(asyncio.get_running_loop())
    ready = tmp_path / "ready"
    server = Service(postgres.service(home, ports.postgres, is_ready=lambda: asyncio.sleep(0, True)), log, lambda: None)
    given = {
        **os.environ,
        **PASSWORDS,
        "TIDEGATE_NATS_PORT": str(ports.nats[0]),
        "TIDEGATE_POSTGRES_PORT": str(ports.postgres),
        "TIDEGATE_READY_FILE": str(ready),
    }
    async with asyncio.TaskGroup() as group:
        group.create_task(server.run())
        nats = await asyncio.create_subprocess_exec(
            plan.console_script("nats-server"), "--config", str(config), env=given, stderr=log.write_end
        )
        prepare = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tidegate_local.prepare"), env=given, stderr=log.write_end
        )
        try:
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                while not ready.exists():
                    assert prepare.returncode is None, log.tail()
                    await asyncio.sleep(0.05)
            made = database.Database(port=ports.postgres, passwords={"projector": "pprojector"})
            connection = await asyncpg.connect(made.url("projector"), timeout=5)
            assert await connection.fetchval("SELECT current_user") == database.OWNER
            await connection.close()
            client = await connecting.connect(
                bus.Bus(ports=ports.nats, passwords={"metrics": "pmetrics"}).login("metrics")
            )
            for stream in ("JOURNAL_1", "USER", "TELEMETRY", "DEADLETTER", "KV_LEASE", "KV_POSITIONS", "OBJ_SNAPSHOTS"):
                assert (await client.jetstream().stream_info(stream)).state.messages == 0
            await client.close()
        finally:
            for process in (prepare, nats):
                process.terminate()
                await process.wait()
            await server.stop()
    log.close(asyncio.get_running_loop())
    assert prepare.returncode == 0


def test_a_missing_password_is_named() -> None:
    given = {**os.environ, **PASSWORDS, "TIDEGATE_NATS_PORT": "1", "TIDEGATE_POSTGRES_PORT": "2"}
    del given["TIDEGATE_PASSWORD_PROJECTOR"]
    done = subprocess.run(
        [sys.executable, "-m", "tidegate_local.prepare"],
        env=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 2
    assert "TIDEGATE_PASSWORD_PROJECTOR is not set" in done.stderr
