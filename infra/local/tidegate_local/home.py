"""The data directory of a stack: where things lie in it, who holds it, and the record others find the stack by."""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path
from typing import Literal

import msgspec

from tidegate_local.topology import ONE_OF_EACH, Topology

HOME_VARIABLE = "TIDEGATE_HOME"
LOOPBACK = "127.0.0.1"

State = Literal["starting", "ready", "stopping", "stopped", "failed"]


class ServiceRecord(msgspec.Struct, kw_only=True):
    """One supervised process. `pid` is 0 while it is down."""

    pid: int = 0
    ready: bool = False
    restarts: int = 0
    log: str = ""


class StackRecord(msgspec.Struct, kw_only=True):
    """What `stack.json` holds; mode 0600, because of the operator's passwords (of bus and database, both read-only).

    `node` names all nodes, separated by commas.
    """

    state: State
    pid: int
    home: str
    node: str
    level: str
    gateway_url: str
    bus_url: str
    bus_user: str
    bus_password: str
    metrics_url: str = ""
    database_url: str = ""
    ports: dict[str, int]
    services: dict[str, ServiceRecord] = {}
    detail: str = ""
    topology: Topology = ONE_OF_EACH


class HomeError(Exception):
    """A stack cannot have this data directory; the text says why."""


class HomeInUseError(HomeError):
    """Another stack holds this data directory."""


class Home:
    """Paths of one stack. Nothing of a stack is written outside `root`, apart from its cgroups."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().absolute()
        self.nats_dir = self.root / "nats"
        self.postgres_dir = self.root / "postgres"
        self.logs_dir = self.root / "logs"
        self.run_dir = self.root / "run"
        self.tmp_dir = self.root / "tmp"
        self.stack_file = self.root / "stack.json"
        self.lock_file = self.root / "lock"
        self.hot_dir = self.root / "hot"
        self.secrets_dir = self.root / "secrets"
        # The only host directories below which a job may name inputs and outputs.
        self.inputs_dir = self.root / "inputs"
        self.outputs_dir = self.root / "outputs"
        # Sealed generations of the journal; every service that reads history reads them there.
        self.archive_dir = self.root / "journal" / "archive"

    @classmethod
    def default(cls) -> Home:
        """Return TIDEGATE_HOME, else the user's own directory (the same rule as the client's)."""
        named = os.environ.get(HOME_VARIABLE, "")
        return cls(Path(named) if named else Path.home() / ".local" / "share" / "tidegate" / "local")

    @property
    def cgroup_name(self) -> str:
        """Return the name of this stack's cgroup: one for each data directory, so that stacks do not mix."""
        return "tidegate-" + hashlib.sha256(str(self.root).encode()).hexdigest()[:8]

    def create(self) -> None:
        """Make the directories. Sandboxes run as other users and pass through the root (0711), but cannot list it.

        Raises HomeError.
        """
        try:
            self._make()
        except OSError as error:
            raise HomeError(
                f"{self.root} cannot be a stack's data directory: {error}. Give another --home: a directory in which "
                "you may write, or one that is not there yet"
            ) from error

    def _make(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True, mode=0o711)
        self.root.chmod(0o711)
        for private in (self.nats_dir, self.postgres_dir, self.logs_dir, self.run_dir, self.tmp_dir, self.secrets_dir):
            private.mkdir(exist_ok=True, mode=0o700)
        self.archive_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        for passable in (self.hot_dir, self.inputs_dir, self.outputs_dir):
            passable.mkdir(exist_ok=True, mode=0o711)

    def ready_file(self, service: str) -> Path:
        """Return the file that `service` makes when it is ready."""
        return self.run_dir / f"{service}.ready"

    def hold(self) -> int:
        """Take the directory for this process's life; return the lock's descriptor. Raises HomeInUseError."""
        descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            record = self.read_record()
            holder = f" (pid {record.pid})" if record else ""
            raise HomeInUseError(
                f"a stack{holder} already uses {self.root}: `tidegate down` ends it, or give another --home"
            ) from None
        return descriptor

    def is_held(self) -> bool:
        """Say whether a living stack holds the directory."""
        if not self.lock_file.exists():
            return False
        try:
            os.close(self.hold())
        except HomeInUseError:
            return True
        return False

    def write_record(self, record: StackRecord) -> None:
        """Replace `stack.json` in one step."""
        data = msgspec.json.format(msgspec.json.encode(record), indent=2)
        write_private(self.stack_file, data)

    def read_record(self) -> StackRecord | None:
        """Return the record, None where no stack ever ran here or the file is not one."""
        try:
            return msgspec.json.decode(self.stack_file.read_bytes(), type=StackRecord)
        except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
            return None


def write_private(path: Path, data: bytes) -> None:
    """Write `data` so that only the owner can read it and nobody sees a half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    temporary.replace(path)
