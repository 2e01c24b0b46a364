"""The stack's PostgreSQL, for real: made once, private, healed after a kill, and nothing of it left."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from tidegate_local import account, database, leftovers, plan, postgres
from tidegate_local.database import Database
from tidegate_local.home import Home
from tidegate_local.logfile import LogFile
from tidegate_local.service import Service

WAIT_SECONDS_MAX = 60.0


class Running:
    """A supervised server in a home of its own."""

    def __init__(self, home: Home, made: Database, service: Service) -> None:
        self.home, self.database, self.service = home, made, service

    async def connect(self, login: str) -> asyncpg.Connection:
        return await asyncpg.connect(self.database.url(login), timeout=5)

    async def again(self, killed: int) -> None:
        """Wait until another process than `killed` is ready."""
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while self.service.pid in {0, killed} or not self.service.ready.is_set():  # noqa: ASYNC110 - a state, no event
                await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Return a home with a database, which each test starts anew."""
    home = Home(tmp_path_factory.mktemp("postgres") / "home")
    home.create()
    asyncio.run(postgres.initialise(home, database.new_password))
    return home


@pytest.fixture
async def running(home: Home) -> AsyncIterator[Running]:
    """Yield a server with the stack's logins; afterwards nothing of it may be left."""
    made = database.new_database(plan.free_port())
    log = LogFile(home.logs_dir / "postgres.log")
    log.follow(asyncio.get_running_loop())
    service = Service(plan.postgres_service(home, made), log, on_change=lambda: None)
    async with asyncio.TaskGroup() as group:
        group.create_task(service.run())
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            await service.ready.wait()
        try:
            yield Running(home, made, service)
        finally:
            await service.stop()
    log.close(asyncio.get_running_loop())
    assert await leftovers.find_settled(home, {"postgres": made.port}) == []


async def test_projector_and_metrics_share_what_they_make_and_the_others_read_it(running: Running) -> None:
    projector, metrics = await running.connect("projector"), await running.connect("metrics")
    await projector.execute("CREATE SCHEMA tidegate; CREATE TABLE tidegate.jobs (id text PRIMARY KEY)")
    await metrics.execute("INSERT INTO tidegate.jobs VALUES ('j-1'); ALTER TABLE tidegate.jobs ADD COLUMN x int")
    for login in database.READERS:
        reader = await running.connect(login)
        assert await reader.fetchval("SELECT id FROM tidegate.jobs") == "j-1"
        for statement in ("DELETE FROM tidegate.jobs", "CREATE TABLE mine (x int)", "DROP SCHEMA tidegate CASCADE"):
            with pytest.raises((asyncpg.ReadOnlySQLTransactionError, asyncpg.InsufficientPrivilegeError)):
                await reader.execute(statement)
        await reader.execute("SET default_transaction_read_only = off")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await reader.execute("DELETE FROM tidegate.jobs")
        await reader.close()
    await projector.close()
    await metrics.close()


async def test_nobody_comes_in_without_a_password_and_no_service_rules(running: Running) -> None:
    for user in (postgres.SUPERUSER, database.OWNER, *running.database.passwords):
        with pytest.raises((asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError)):
            await asyncpg.connect(
                host="127.0.0.1", port=running.database.port, user=user, password="guess", database=database.DATABASE
            )
    for login in database.WRITERS:
        connection = await running.connect(login)
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.fetch("SELECT pg_read_file('/etc/passwd')")
        await connection.close()


async def test_a_killed_server_comes_back_with_what_was_committed(running: Running) -> None:
    connection = await running.connect("projector")
    await connection.execute("CREATE TABLE kept (x int); INSERT INTO kept VALUES (42)")
    killed = running.service.pid
    os.kill(killed, signal.SIGKILL)
    await running.again(killed)
    await connection.close(timeout=5)
    connection = await running.connect("projector")
    assert await connection.fetchval("SELECT x FROM kept") == 42
    await connection.close()


async def test_what_is_running_is_found(running: Running) -> None:
    """The list of leftovers must be able to find the server, or an empty one would prove nothing."""
    kinds = [leftover.kind for leftover in leftovers.find(running.home, {"postgres": running.database.port})]
    assert kinds.count("process") >= 5
    assert kinds.count("port") == 1
    assert kinds.count("memory") == 1


async def test_passwords_and_data_are_for_the_owner_alone(running: Running) -> None:
    assert stat.S_IMODE(postgres.password_file(running.home).stat().st_mode) == 0o600
    assert stat.S_IMODE(running.home.postgres_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE(postgres.data_dir(running.home).stat().st_mode) == 0o700
    argv = _kernel(running, "cmdline")
    log = (running.home.logs_dir / "postgres.log").read_text()
    passwords = {*running.database.passwords.values(), postgres.password_file(running.home).read_text()}
    assert not any(password in argv or password in log or password in repr(running.database) for password in passwords)


async def test_an_interrupted_first_start_is_begun_again(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.create()
    half = home.postgres_dir / "new"
    half.mkdir()
    (half / "PG_VERSION").write_text("18")
    await postgres.initialise(home, database.new_password)
    assert not half.exists()
    password = postgres.password_file(home).read_text()
    await postgres.initialise(home, database.new_password)  # a made one stays as it is
    assert postgres.password_file(home).read_text() == password


async def test_a_pid_file_that_names_another_program_is_forgotten(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.create()
    postgres.data_dir(home).mkdir()
    pid_file = postgres.data_dir(home) / postgres.PID_FILE
    spec = postgres.service(home, 1, is_ready=lambda: asyncio.sleep(0, False))
    pid_file.write_text(f"{os.getpid()}\n")
    spec.before_start()
    assert not pid_file.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has another account to take")
async def test_as_root_the_server_is_another_with_no_right_but_to_pass(running: Running) -> None:
    status = dict(line.split(":\t", 1) for line in _kernel(running, "status").splitlines())
    owner = account.own()
    assert owner is not None
    assert set(status["Uid"].split()) == {str(owner.uid)} != {"0"}
    assert int(status["CapEff"], 16) in {1 << account.CAP_DAC_READ_SEARCH, 1 << account.CAP_DAC_OVERRIDE, 0}
    assert status["CapEff"] == status["CapPrm"]


def _kernel(running: Running, name: str) -> str:
    """Return what the kernel says of the server."""
    return Path(f"/proc/{running.service.pid}/{name}").read_text()
