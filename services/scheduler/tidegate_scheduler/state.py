"""What the scheduler knows, and nothing else: the result of folding the journal.

`evolve` is the only one that changes it; `decide` only reads it. All amounts are integers, all times Unix nanoseconds
that came with events. `finished` keeps a short record of every ended job, so that a late duplicate of its submission
cannot run it again.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from blake3 import blake3
from tidegate_events.events import CheckpointRef, HeldSandbox, Quota
from tidegate_events.resources import GpuDevice, Resources
from tidegate_events.spec import DEFAULT_PHASE, JobSpec, member_floor

from tidegate_scheduler.digest import StateDigest

Stage = Literal["pending", "suspended", "placed", "running", "preempting", "stopping"]
MemberStatus = Literal["ordered", "started", "completed", "suspended", "failed", "stopped", "lost", "rejected"]

ACTIVE_STATUSES: frozenset[str] = frozenset({"ordered", "started"})
WAITING_STAGES: frozenset[str] = frozenset({"pending", "suspended"})
LEAVING_STAGES: frozenset[str] = frozenset({"preempting", "stopping"})
CHECKPOINTS_KEPT = 3


class Exit(msgspec.Struct, frozen=True):
    """How a member's sandbox ended."""

    exit_code: int | None = None
    signal: int | None = None
    oom: bool = False
    last_step: int | None = None
    detail: str = ""


class Member(msgspec.Struct):
    """One member of the current attempt; it holds its room until its end was seen (or its node was lost)."""

    rank: int
    node: str
    quotas: tuple[Quota, ...]
    gpu_indices: tuple[int, ...]
    status: MemberStatus = "ordered"
    phase: str = DEFAULT_PHASE
    exit: Exit | None = None

    @property
    def active(self) -> bool:
        """Say whether the member still holds its room."""
        return self.status in ACTIVE_STATUSES


class Job(msgspec.Struct):
    """A job that has not ended. `revision` goes up with whatever changes it, so that stale decisions are known."""

    id: str
    tenant: str
    spec_digest: str
    traceparent: str
    priority: int
    submitted_seq: int
    submitted_ns: int
    stage: Stage = "pending"
    revision: int = 0
    attempt: int = 0
    members: list[Member] = []
    checkpoints: list[CheckpointRef] = []
    resumed_from: CheckpointRef | None = None
    result: dict[str, str | int | float | bool | None] = {}
    preemptions: int = 0
    failures: int = 0
    infrastructure_failures: int = 0
    excluded_nodes: list[str] = []
    reserved_nodes: tuple[str, ...] = ()
    not_before_ns: int = 0
    placed_ns: int = 0
    started_ns: int = 0
    ran_ns: int = 0
    deadline_ns: int = 0
    stop_reason: str = ""
    cancel_requested: bool = False
    cause: str = ""

    @property
    def waiting(self) -> bool:
        """Say whether the job stands in the queue."""
        return self.stage in WAITING_STAGES

    @property
    def last_step(self) -> int | None:
        """Return the highest step that a member of this attempt reported before it ended."""
        steps = [m.exit.last_step for m in self.members if m.exit is not None and m.exit.last_step is not None]
        return max(steps, default=None)

    @property
    def newest_checkpoint(self) -> CheckpointRef | None:
        """Return the checkpoint to resume from, None where there is none that is not known to be broken."""
        return self.checkpoints[-1] if self.checkpoints else None


class Finished(msgspec.Struct, frozen=True):
    """What is kept of an ended job."""

    id: str
    tenant: str
    state: Literal["completed", "failed", "cancelled", "rejected"]
    attempt: int


class Node(msgspec.Struct):
    """A node and what it offers. `zombies` are sandboxes that run there but belong to no current attempt."""

    name: str
    incarnation: int
    capacity: Resources
    levels: tuple[str, ...]
    gpus: tuple[GpuDevice, ...]
    images: dict[str, str] = {}
    status: Literal["up", "unreachable", "lost"] = "up"
    unreachable_since_ns: int = 0
    zombies: list[HeldSandbox] = []


class Header(msgspec.Struct):
    """What belongs to no entity."""

    generation: int = 1
    now_ns: int = 0
    epoch: int = 0
    policy: int = 0
    parameters: dict[str, int] = {}


class State:
    """The whole state, with its digest kept up to date lazily: changed entities are marked, then hashed on demand."""

    def __init__(self) -> None:
        self.seq = 0
        self.decision_seq = 0
        self.header = Header()
        self.jobs: dict[str, Job] = {}
        self.finished: dict[str, Finished] = {}
        self.nodes: dict[str, Node] = {}
        self.writers: dict[str, tuple[int, int]] = {}
        self.specs: dict[str, JobSpec] = {}
        self.floors: dict[str, Resources] = {}
        self._digest = StateDigest()
        self._changed: dict[str, None] = {"header": None}

    def touch(self, key: str) -> None:
        """Mark an entity as changed: `header`, `job/<id>`, `finished/<id>`, `node/<name>`, `writer/<name>`."""
        self._changed[key] = None

    def digest(self) -> str:
        """Return the digest of everything that can influence a decision."""
        for key in self._changed:
            entity = self._entity(key)
            if entity is None:
                self._digest.drop(key)
            else:
                self._digest.put(key, entity)
        self._changed.clear()
        return self._digest.text()

    def _entity(self, key: str) -> object | None:
        kind, _, name = key.partition("/")
        if kind == "header":
            return self.header
        tables: dict[str, dict[str, object]] = {
            "job": self.jobs,  # type: ignore[dict-item]
            "finished": self.finished,  # type: ignore[dict-item]
            "node": self.nodes,  # type: ignore[dict-item]
            "writer": self.writers,  # type: ignore[dict-item]
        }
        return tables[kind].get(name)

    def remember_spec(self, job: str, spec: JobSpec) -> str:
        """Keep the job's specification and what is derived from it; return its digest."""
        self.specs[job] = spec
        self.floors[job] = member_floor(spec)
        return blake3(msgspec.json.encode(spec)).hexdigest()

    def forget_spec(self, job: str) -> None:
        """Drop the specification of an ended job, unless a zombie of it must still be told to end."""
        if job in self.jobs or any(z.job == job for node in self.nodes.values() for z in node.zombies):
            return
        self.specs.pop(job, None)
        self.floors.pop(job, None)
