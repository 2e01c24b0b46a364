"""What a sandbox leaves on disk, and what can be told from it without its shim.

The directory `<sandboxes_dir>/<id>` is private to the agent's user. It must never hold a secret.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tidegate_executor.sandbox.base import Condition, Level, Recorded, RequestRefusedError, SandboxEnded, SandboxEvent
from tidegate_executor.sandbox.shim import history, main, processes

RECORD_NAME = "sandbox.json"
ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

T = TypeVar("T")


class SandboxRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Written before anything of the sandbox exists; enough to remove all of it."""

    id: str
    level: Level
    log_dir: str
    cgroup: dict[str, str] | None
    group: str = ""  # its control group's name, where that is not its own: it was made before the sandbox was known
    backend: str = ""
    network: str = ""  # the private network that it is plugged into
    engine: str = ""  # the socket of the container engine that has containers of it

    @property
    def group_name(self) -> str:
        return self.group or self.id


class ShimIdentity(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    start_ticks: int
    boot: str


class StateDirectory:
    """One sandbox's directory."""

    def __init__(self, sandboxes_dir: str, sandbox_id: str) -> None:
        if not ID_PATTERN.fullmatch(sandbox_id):
            raise RequestRefusedError(f"sandbox id {sandbox_id!r} refused; accepted: {ID_PATTERN.pattern}")
        self.id = sandbox_id
        self.path = Path(sandboxes_dir, sandbox_id)

    def create(self, record: SandboxRecord) -> None:
        try:
            self.path.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            raise RequestRefusedError(f"sandbox {self.id} exists already in {self.path}") from None
        try:
            self._write(record)
        except OSError:
            self.remove()
            raise

    def adopt(self, ready: StateDirectory, record: SandboxRecord) -> None:
        """Take over the directory of a sandbox that stood ready for nobody."""
        if self.path.exists():
            raise RequestRefusedError(f"sandbox {self.id} exists already in {self.path}")
        ready.path.rename(self.path)
        try:
            self._write(record)
        except OSError:
            self.path.rename(ready.path)
            raise

    def _write(self, record: SandboxRecord) -> None:
        temporary = self.path / f"{RECORD_NAME}.tmp"
        temporary.write_bytes(msgspec.json.encode(record))
        temporary.rename(self.path / RECORD_NAME)

    def record(self) -> SandboxRecord | None:
        """None: the directory is gone, or its making was cut short before anything else was made."""
        return _read(self.path / RECORD_NAME, SandboxRecord)

    def shim(self) -> ShimIdentity | None:
        """The shim, if it lives: same boot, same pid, same start time."""
        identity = _read(self.path / main.IDENTITY_NAME, ShimIdentity)
        if identity is None:
            return None
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        alive = identity.boot == boot and processes.start_ticks(identity.pid) == identity.start_ticks
        return identity if alive else None

    def events(self, offset: int = 0) -> list[Recorded]:
        """Everything recorded from `offset` on. A torn last line was acted on by nobody and is left out."""
        try:
            with open(self.path / history.FILE_NAME, "rb") as reading:
                reading.seek(offset)
                data = reading.read()
        except FileNotFoundError:
            return []
        found = []
        for line in data.splitlines(keepends=True):
            if line.endswith(b"\n"):
                offset += len(line)
                found.append(Recorded(next_offset=offset, event=msgspec.json.decode(line, type=SandboxEvent)))
        return found

    def unfinished(self) -> list[tuple[int, int]]:
        """(pid, start time) of replicas that started and have no recorded exit."""
        open_replicas: dict[tuple[str, int], tuple[int, int]] = {}
        try:
            lines = (self.path / history.FILE_NAME).read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        for line in lines:
            event: dict[str, Any] = msgspec.json.decode(line)
            if event["type"] == "started" and event["start_ticks"] is not None:
                open_replicas[event["component"], event["replica"]] = (event["pid"], event["start_ticks"])
            elif event["type"] == "exited":
                open_replicas.pop((event["component"], event["replica"]), None)
        return list(open_replicas.values())

    def condition(self) -> Condition:
        alive = self.shim() is not None  # before the events: its last one may come while we look
        if any(isinstance(recorded.event, SandboxEnded) for recorded in self.events()):
            return "ended"
        return "running" if alive else "lost"

    def remove(self) -> None:
        """Remove the directory, also what the job made unwritable in it."""
        remove_tree(self.path)


def living_shims(sandboxes_dir: Path) -> list[int]:
    """Return the pids of the shims that live, of sandboxes of that directory."""
    if not sandboxes_dir.is_dir():
        return []
    names = sorted(entry.name for entry in sandboxes_dir.iterdir() if ID_PATTERN.fullmatch(entry.name))
    found = (StateDirectory(str(sandboxes_dir), name).shim() for name in names)
    return [identity.pid for identity in found if identity is not None]


def _read(path: Path, kind: type[T]) -> T | None:
    """Return what the file says; None where it is missing, or emptied by a power cut (nothing of it lives then)."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def remove_tree(top: Path) -> None:
    """Remove a directory that a job could write to, whatever modes it left there. None of its links is followed."""
    try:
        shutil.rmtree(top)
    except FileNotFoundError:
        if os.path.lexists(top):
            raise
    except PermissionError:
        # A directory that its owner may not search or write: overlay's `work/work`, or the job's doing.
        _open_up(top)
        shutil.rmtree(top)


def _open_up(top: Path) -> None:
    os.chmod(top, stat.S_IRWXU)
    for parent, directories, _ in os.walk(top):
        for name in directories:
            path = os.path.join(parent, name)
            if not os.path.islink(path):
                os.chmod(path, stat.S_IRWXU)
