"""The sandbox port: what the node agent may ask of any isolation backend, and what it gets back.

A sandbox is (job, attempt, rank) on one node. It holds component replicas, each one process tree with its own
limits. A small shim process per sandbox keeps it alive and keeps its history while the agent is away, so every
call here works on a sandbox that an earlier incarnation of the agent created.

This module must never start a process or read a clock: it is types, errors and protocols only.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Set
from typing import Literal, Protocol

import msgspec

Level = Literal["trusted", "guarded", "vm", "unisolated"]
Condition = Literal["running", "ended", "lost"]

CPU_MILLIS_MIN = 10  # the kernel refuses a quota under 1 ms per 100 ms period
MEMORY_MIB_MIN = 4
LOG_BYTES_MIN = 16 * 1024
GRACE_SECONDS_MAX = 24 * 3600


# --- errors ---------------------------------------------------------------------------------------------------


class SandboxError(Exception):
    """Any failure of this port; catch a subclass to know whose failure it is."""


class InfrastructureError(SandboxError):
    """The node failed, not the job: report the attempt as lost, never as the job's own failure."""


class BackendUnavailableError(InfrastructureError):
    """This node cannot give the level; the text holds the remedy."""


class SandboxLostError(InfrastructureError):
    """The shim is gone and left no end of the sandbox in its events; nothing of it runs any more."""


class JobError(SandboxError):
    """The job's own failure, to be reported as such."""


class CommandNotStartableError(JobError):
    """The component's command could not be executed inside the sandbox (not found, not executable)."""


class RequestRefusedError(SandboxError):
    """The caller asked for something that cannot be; nothing was changed."""


class SandboxStoppingError(RequestRefusedError):
    """The sandbox is being stopped, so nothing starts in it any more: nobody's failure."""


class ResizeRefusedError(RequestRefusedError):
    """The kernel did not take the new limits (for memory: in use and not reclaimable); the old ones still hold."""


# --- what to run ----------------------------------------------------------------------------------------------


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of ONE replica. As a read-back they are what the kernel says, so they may be rounded."""

    cpu_millis: int
    memory_mib: int
    pids: int


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One directory of the image: seen at `target`, read-only below a throw-away upper layer."""

    source: str
    target: str


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """A host directory or file bound into the sandbox. `source` is resolved: a link in it is refused.

    `take_ownership` gives the whole tree to the sandbox's host uid before it is bound (needed for a writable
    directory when the agent runs as root, because each sandbox has its own uid). Nothing outside the tree changes.
    """

    source: str
    target: str
    writable: bool = False
    take_ownership: bool = False


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """A private network among sandboxes of this node: those that name it, each as another `member` from 0 on."""

    name: str
    member: int


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A device node of the host, and where it is seen, below /dev. No other than those given is there.

    `name` is that of the device it is of, by the Container Device Interface, where it has one.
    """

    source: str
    target: str
    name: str = ""


class DiskLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox's own files may take on disk: in all, and how many files and directories (rounded up)."""

    mib: int
    inodes: int


class SandboxSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One sandbox. Its state lies in `<sandboxes_dir of the backend>/<id>`; everything there goes on `destroy`.

    `engine_image` is an image that a container engine has, instead of layers; other backends refuse it.
    `uid_slot` selects the host uid (`uid_base + uid_slot`) when the agent is root; sandboxes of different jobs alive
    at the same time must not share a slot (ranks of one job that share a writable mount should). `log_dir` survives
    `destroy`. `disk` bounds what the job writes into directories of the sandbox's own, mounts not counted; a backend
    that cannot bound it refuses. `redact` are values (>= 4 bytes) replaced in the logs; they, and every `secret_env`
    value, reach the shim over a pipe and are never written to disk.
    """

    id: str
    hostname: str
    log_dir: str
    uid_slot: int = 0
    layers: tuple[Layer, ...] = ()
    engine_image: str = ""
    workdir: str | None = None
    mounts: tuple[Mount, ...] = ()
    devices: tuple[Device, ...] = ()
    network: Network | None = None
    disk: DiskLimits | None = None
    pids_max: int = 4096
    log_bytes_max: int = 16 * 1024 * 1024
    redact: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"SandboxSpec(id={self.id!r}, layers={len(self.layers)}, mounts={len(self.mounts)})"


class ComponentProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One replica to start. `env` is the WHOLE environment; nothing is inherited from the agent.

    `secret_env` is added to it, is redacted from the logs, and is kept out of argv and off the disk. `cwd` is a path
    as seen inside (see `SandboxBackend.path_inside`).
    """

    component: str
    replica: int
    argv: tuple[str, ...]
    limits: Limits
    env: dict[str, str] = {}
    secret_env: dict[str, str] = {}
    cwd: str = "/workspace"

    def __repr__(self) -> str:
        return f"ComponentProcess({self.component}.{self.replica}, argv={self.argv!r})"


# --- what happened --------------------------------------------------------------------------------------------


class SandboxReady(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The empty sandbox stands; components may start."""

    at_ns: int


class ReplicaStarted(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    """The replica's command was executed (its exec succeeded). `pid` is the host's."""

    at_ns: int
    component: str
    replica: int
    pid: int


class CallRefused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The system call filter denied calls of a replica's: `times` one of this name since it was last told.

    `pid`, the host's, and `command`, the name that it has given itself, are of the last process that made one; 0 and
    empty where it has ended. The first of a name is told at once, then ever fewer.
    """

    at_ns: int
    component: str
    replica: int
    call: str
    times: int
    pid: int = 0
    command: str = ""


class ReplicaExited(msgspec.Struct, frozen=True, kw_only=True, tag="exited"):
    """The replica's first process ended, and the rest of its tree was killed.

    Exactly one of `exit_code` and `signal` is set. `oom`: the kernel killed a process of this replica for memory.
    `stopping`: it ended while a `stop` of the whole sandbox was under way.
    """

    at_ns: int
    component: str
    replica: int
    exit_code: int | None = None
    signal: int | None = None
    oom: bool = False
    stopping: bool = False


class ReplicaResized(msgspec.Struct, frozen=True, kw_only=True, tag="resized"):
    """New limits, as read back from the kernel."""

    at_ns: int
    component: str
    replica: int
    limits: Limits


class SandboxEnded(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """Nothing runs any more and nothing will. `collapsed`: it broke without a stop (infrastructure)."""

    at_ns: int
    reason: Literal["stopped", "collapsed"]


SandboxEvent = SandboxReady | ReplicaStarted | CallRefused | ReplicaExited | ReplicaResized | SandboxEnded


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """An event with the place after it in the sandbox's history: pass `next_offset` to resume there."""

    next_offset: int
    event: SandboxEvent


class ReplicaStats(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of one running replica, counters since it started.

    `limits` is None where no limit is enforced (then the rest may be 0 too).
    """

    component: str
    replica: int
    pid: int
    cpu_usec: int
    memory_bytes: int
    memory_peak_bytes: int
    processes: int
    oom_kills: int
    limits: Limits | None
    cpu_periods: int = 0
    cpu_throttled_periods: int = 0
    cpu_throttled_usec: int = 0
    memory_limit_hits: int = 0
    calls_refused: int = 0


class SandboxStats(msgspec.Struct, frozen=True, kw_only=True):
    at_ns: int
    limits_enforced: bool
    frozen: bool
    replicas: tuple[ReplicaStats, ...]


class LogChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a replica's output (stdout and stderr in the order written).

    Offsets count all bytes ever written. What the bound dropped shows as one line of text at its place.
    """

    offset: int
    next_offset: int
    data: bytes


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """What trying it for real showed. `remedy` says what to do where `available` is False.

    `limits`: which mechanism enforces limits ("cgroup-v2", "cgroup-v1", "none"); `notes` are for the operator.
    """

    level: Level
    backend: str
    available: bool
    limits: str
    remedy: str = ""
    notes: tuple[str, ...] = ()


class FoundSandbox(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox found on this node. The handle works in every condition (events, logs, destroy)."""

    condition: Condition
    sandbox: Sandbox


# --- the port -------------------------------------------------------------------------------------------------


class Sandbox(Protocol):
    """A handle. Handles hold no state that matters: any number, in any incarnation of the agent, mean the same."""

    @property
    def id(self) -> str: ...

    async def start(self, process: ComponentProcess) -> ReplicaStarted:
        """Start one replica in its own cgroup; return when its command was executed.

        Starting a (component, replica) that runs already is refused; one that exited may start again.
        Raises CommandNotStartableError (the job's own), InfrastructureError, RequestRefusedError.
        """
        ...

    async def resize(self, component: str, replica: int, limits: Limits) -> Limits:
        """Change limits on the live replica; return what the kernel then reports.

        Never kills to shrink: memory in use that cannot be reclaimed raises ResizeRefusedError, limits unchanged.
        """
        ...

    async def signal(self, component: str, replica: int, signal: signal.Signals) -> None:
        """Send to the replica's first process (SIGKILL: to its whole tree). No error if it ended meanwhile."""
        ...

    async def freeze(self) -> None:
        """Stop every process of the sandbox from running, until `thaw`. Refused where no limits are enforced."""
        ...

    async def thaw(self) -> None: ...

    async def stats(self) -> SandboxStats: ...

    def events(self, offset: int = 0) -> AsyncIterator[Recorded]:
        """Follow the history from `offset`, past and then live; ends after SandboxEnded.

        Raises SandboxLostError, after everything recorded was yielded, when the shim is gone without an end: what it
        left running is killed first. Raises another InfrastructureError where that cannot be done.
        """
        ...

    async def logs(self, component: str, replica: int, offset: int = 0, bytes_max: int = 65536) -> LogChunk:
        """Read output from `offset` on; an empty chunk means nothing new. Negative offset: that many from the end."""
        ...

    async def disk_full(self) -> str:
        """What of the sandbox's own disk is used up, in words; empty: nothing is. Until it is destroyed."""
        ...

    async def stop(self, grace_seconds: float) -> tuple[ReplicaExited, ...]:
        """SIGTERM to each replica, SIGKILL after the grace; return when nothing runs any more.

        The shim does it, so it happens even if the agent dies meanwhile. Idempotent; a second call with a shorter
        grace shortens it. The result holds the last exit of every replica that ever started.
        """
        ...

    async def destroy(self) -> None:
        """Kill what runs, at once, and remove cgroups, mounts and the state directory. Idempotent."""
        ...


class SandboxBackend(Protocol):
    """One way to isolate, on this node."""

    @property
    def level(self) -> Level: ...

    async def probe(self) -> ProbeResult:
        """Prove by doing: really start a sandbox with limits and look at them from inside. Takes < 5 s."""
        ...

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Set the empty sandbox up. On any error nothing of it is left. An existing id is refused."""
        ...

    async def list(self) -> tuple[FoundSandbox, ...]:
        """All sandboxes whose state lies in `sandboxes_dir`, for reconciliation at start. Changes nothing."""
        ...

    async def sweep(self, keep: Set[str]) -> tuple[str, ...]:
        """Destroy every sandbox (and stray cgroup) of this backend whose id is not in `keep`; return their ids."""
        ...

    async def release(self) -> None:
        """Remove what the backend itself holds on the node (empty parent cgroups). Sandboxes are not touched."""
        ...

    def host_uid(self, uid_slot: int) -> int | None:
        """The host uid that the sandbox's files belong to; None where it is the agent's own.

        The agent's socket in /run/tidegate/agent must be writable for it.
        """
        ...

    def path_inside(self, spec: SandboxSpec, target: str) -> str:
        """Where the job sees `target` ("/workspace", "/tmp", a mount's target, ...): itself, or at level
        `unisolated` the real directory that stands for it.
        """
        ...
