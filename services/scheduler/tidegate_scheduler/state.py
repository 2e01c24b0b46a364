"""What the scheduler knows, and nothing else: the result of folding the journal.

`evolve` is the only one that changes it; `decide` only reads it. All amounts are integers, all times Unix nanoseconds
that came with events. `finished` keeps a short record of every ended job, so that a late duplicate of its submission
cannot run it again.

**How state grows.** Recorded passes carry the digest of the state that they were decided on, over every field of every
entity as `digest.py` writes it, so a history verifies only while its states still encode to the same bytes. Therefore
in what is digested (`Job`, `Member`, `Node`, `Header`) the fields of the first release are required, in their order:
they are always written. Whatever came after follows them, has a default, and is left out while it has it
(`omit_defaults`); and no fact of a history of policy 1 may set it, which is what `State.elastic` is asked for.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from blake3 import blake3
from tidegate_events.events import CheckpointRef, HeldSandbox, Quota
from tidegate_events.resources import GpuDevice, Resources
from tidegate_events.spec import JobSpec, member_floor

from tidegate_scheduler.digest import StateDigest
from tidegate_scheduler.seats import Seats, Zombies

Stage = Literal["pending", "suspended", "placed", "running", "preempting", "stopping"]
MemberStatus = Literal["ordered", "started", "completed", "suspended", "failed", "stopped", "lost", "rejected"]

ACTIVE_STATUSES: frozenset[str] = frozenset({"ordered", "started"})
WAITING_STAGES: frozenset[str] = frozenset({"pending", "suspended"})
LEAVING_STAGES: frozenset[str] = frozenset({"preempting", "stopping"})
CHECKPOINTS_KEPT = 3
FAILURES_KEPT = 16
HINTS_KEPT = 8
MOVES_KEPT = 1000
MOVED_WITHIN_NS = 3600 * 1_000_000_000
MAINTENANCE_MAX = 100
NO_LIMIT = -1
ELASTIC_SINCE_POLICY = 2


class Exit(msgspec.Struct, frozen=True, gc=False):
    """How a member's sandbox ended."""

    exit_code: int | None = None
    signal: int | None = None
    oom: bool = False
    last_step: int | None = None
    detail: str = ""


class Member(msgspec.Struct, kw_only=True, gc=False, omit_defaults=True):
    """One member of the current attempt; it holds its room until its end was seen (or its node was lost).

    `resized_ns` is when its quotas last changed; 0: not since it was placed. `returns_mib` is the memory of simulators
    that were told to leave, which may hold it until `returns_ns`.

    `wanted` is the phase that it asks to enter, since `wanted_ns`, and `granted` the one that it may enter. `held_mib`
    is the memory that the kernel still lets it have, or may for all that is known, where that is above its quotas (0:
    it is not). Of what it has
    beyond its floor, `leased` belongs to others and `extra` was nobody's; it was told to hand back what is leased by
    `hand_back_ns`, for `hand_back_for` (0: it was not). `leased_ns` is when it was last granted anything beyond its
    floor. `lent_gpus` are the devices of its floor that its phase does not need, and `lent_millis` is what it does not
    need of its floor's share of one. `recalls` counts how often in a row it was told to hand back, last at
    `recalled_ns`.
    """

    rank: int
    node: str
    quotas: tuple[Quota, ...]
    gpu_indices: tuple[int, ...]
    status: MemberStatus
    phase: str
    exit: Exit | None
    resized_ns: int = 0
    returns_mib: int = 0
    returns_ns: int = 0
    wanted: str = ""
    granted: str = ""
    held_mib: int = 0
    leased: Resources | None = None
    hand_back_ns: int = 0
    hand_back_for: str = ""
    extra: Resources | None = None
    wanted_ns: int = 0
    leased_ns: int = 0
    lent_gpus: tuple[int, ...] = ()
    lent_millis: int = 0
    recalls: int = 0
    recalled_ns: int = 0

    @property
    def active(self) -> bool:
        """Say whether the member still holds its room."""
        return self.status in ACTIVE_STATUSES


class Job(msgspec.Struct, kw_only=True, gc=False, omit_defaults=True):
    """A job that has not ended. `revision` goes up with whatever changes it, so that stale decisions are known.

    `held` keeps it out of what is placed; `suspend_requested` and `requeue_requested` ask it to leave, the first to be
    held then. `time_limit_seconds` overrides its own (None: it does not, NO_LIMIT: there is none). `slow` tells that
    this attempt's step rate is below the job's target, `suspended_ns` when it last left because it was asked to,
    `saved_ns` when its newest checkpoint was committed (0: not known, or there is none), and `reserved_start_ns` when
    the room reserved for it is expected to be free (0: not known, or none is reserved). `cpu_model` is that of the node
    of its first attempt, where the job is strict: it goes to no other. `backfills` are the jobs for which room is kept
    that this attempt has until they come. `room_changes` counts how often in a row the room kept for it changed, last
    at `room_changed_ns`. Its share of CPU was raised by `raised_steps` at `raised_ns`, when its rate was last said to
    be low or to have recovered (`raising.py`). `saved_on` is the node that its newest checkpoint lies on (empty: none
    that is known). Of its `preemptions`, so many were `slices`: it left for a job of its own priority. It was asked to
    move for a phase `moves` times in a row, last at `moved_ns` (`moves.py`).
    """

    id: str
    tenant: str
    spec_digest: str
    traceparent: str
    priority: int
    submitted_seq: int
    submitted_ns: int
    stage: Stage
    revision: int
    attempt: int
    members: list[Member]
    checkpoints: list[CheckpointRef]
    resumed_from: CheckpointRef | None
    result: dict[str, str | int | float | bool | None]
    preemptions: int
    failures: int
    infrastructure_failures: int
    excluded_nodes: list[str]
    reserved_nodes: tuple[str, ...]
    not_before_ns: int
    placed_ns: int
    started_ns: int
    ran_ns: int
    deadline_ns: int
    stop_reason: str
    cancel_requested: bool
    cause: str
    held: bool = False
    suspend_requested: bool = False
    requeue_requested: bool = False
    time_limit_seconds: int | None = None
    progress_millis: int = 0
    progress_ns: int = 0
    slow: bool = False
    suspended_ns: int = 0
    saved_ns: int = 0
    reserved_start_ns: int = 0
    cpu_model: str = ""
    backfills: tuple[str, ...] = ()
    room_changes: int = 0
    room_changed_ns: int = 0
    raised_steps: int = 0
    raised_ns: int = 0
    raise_window_seconds: int = 0
    saved_on: str = ""
    slices: int = 0
    moves: int = 0
    moved_ns: int = 0

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


class Finished(msgspec.Struct, frozen=True, gc=False):
    """What is kept of an ended job."""

    id: str
    tenant: str
    state: Literal["completed", "failed", "cancelled", "rejected"]
    attempt: int


class NodeFailure(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """An attempt of a job that failed, was lost or was refused on a node; `with_node`: it went down with the node."""

    job: str
    attempt: int
    at_ns: int
    with_node: bool = False


class Node(msgspec.Struct, kw_only=True, gc=False, omit_defaults=True):
    """A node and what it offers. `zombies` are sandboxes that run there but belong to no current attempt.

    What an operator said of it (`drain_deadline_ns`, 0: it is not drained), that it is `cordoned`, and the `failures`
    of jobs there, the oldest first, outlive the restarts of its agent; `hinted` are the images it may be making ready,
    `unavailable` those of them that it could not get. Only one that `fetches_images` is hinted any. `gpu_levels` are
    those of its `levels` at which a job can have its GPUs; None: all of them.
    """

    name: str
    incarnation: int
    capacity: Resources
    levels: tuple[str, ...]
    gpus: tuple[GpuDevice, ...]
    images: dict[str, str]
    status: Literal["up", "unreachable", "lost"]
    unreachable_since_ns: int
    zombies: list[HeldSandbox]
    rack: str = ""
    switch: str = ""
    cpu_model: str = ""
    isa: str = ""
    drain_deadline_ns: int = 0
    cordoned: bool = False
    failures: list[NodeFailure] = []
    hinted: list[str] = []
    address: str = ""
    unavailable: list[str] = []
    fetches_images: bool = False
    gpu_levels: tuple[str, ...] | None = None


class Queue(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The queue of a tenant, as an operator set it as a whole; a tenant without one has these defaults."""

    tenant: str
    weight: int = 1
    guaranteed: Resources | None = None
    ceiling: Resources | None = None
    stopped: bool = False


class Maintenance(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A time in which nothing shall run on the nodes. One that is over means nothing, and is kept for a while."""

    name: str
    nodes: tuple[str, ...]
    start_ns: int
    end_ns: int


class Header(msgspec.Struct, kw_only=True, gc=False, omit_defaults=True):
    """What belongs to no entity.

    `moved_ns` is when jobs were asked to move against fragmentation, in the last hour, and `offers_changed_ns` when a
    node last joined that was not known, or one came to offer less or was forgotten; `offers_changing_ns` when the first
    did of those that each came soon after the one before.
    """

    generation: int
    now_ns: int
    epoch: int
    policy: int
    parameters: dict[str, int]
    moved_ns: list[int] = []
    offers_changed_ns: int = 0
    offers_changing_ns: int = 0


class State:
    """The whole state, with its digest kept up to date lazily: changed entities are marked, then hashed on demand."""

    def __init__(self) -> None:
        self.seq = 0
        self.decision_seq = 0
        self.header = Header(generation=1, now_ns=0, epoch=0, policy=0, parameters={})
        self.jobs: dict[str, Job] = {}
        self.finished: dict[str, Finished] = {}
        self.nodes: dict[str, Node] = {}
        self.writers: dict[str, tuple[int, int]] = {}
        self.specs: dict[str, JobSpec] = {}
        self.floors: dict[str, Resources] = {}
        self.queues: dict[str, Queue] = {}
        self.maintenance: dict[str, Maintenance] = {}
        self._digest = StateDigest()
        self._changed: dict[str, None] = {"header": None}
        self.seats = Seats(self)
        self._unseated = self.seats.changed
        self.zombies = Zombies()
        self._watchers: list[dict[str, None]] = []
        self.derived: object = None
        """What a policy keeps of this state between passes: a cache that `watch`es it, which it makes itself."""

    def touch(self, key: str) -> None:
        """Mark an entity as changed, by its key: `header`, or a table and a name.

        Tables are `job/<id>`, `finished/<id>`, `node/<name>`, `writer/<name>`, `queue/<tenant>`, `maintenance/<name>`.
        """
        self._changed[key] = None
        for keys in self._watchers:
            keys[key] = None
        if key.startswith("job/"):
            self._unseated[key] = None
        elif key.startswith("node/"):
            name = key.removeprefix("node/")
            self.zombies.note(name, self.nodes.get(name))

    def watch(self, keys: dict[str, None]) -> None:
        """Have the key of every entity that changes from now on put into `keys`, for whoever keeps an index of it."""
        self._watchers.append(keys)

    def unwatch(self, keys: dict[str, None]) -> None:
        """End `watch` for whoever keeps its index no longer."""
        self._watchers = [each for each in self._watchers if each is not keys]

    @property
    def elastic(self) -> bool:
        """Say whether what only policy 2 and later read is recorded.

        Facts of policy 1's histories hold some of it (CPU models, step rates, failures), and recording it there would
        change the digests that those histories carry. What a fact told before the policy changed is not made up for:
        a node's CPU model is known when its agent next joins, a slow job when its rate is next said to be low.
        """
        return self.header.policy >= ELASTIC_SINCE_POLICY

    def digest(self) -> str:
        """Return the digest of everything that can influence a decision."""
        tables = self._tables()
        for key in self._changed:
            entity = self._entity(key, tables)
            if entity is None:
                self._digest.drop(key)
            else:
                self._digest.put(key, entity)
        self._changed.clear()
        return self._digest.text()

    def touch_all(self) -> None:
        """Mark every entity as changed, after all were put there without a word."""
        self.touch("header")
        for kind, table in self._tables().items():
            for name in table:
                self.touch(f"{kind}/{name}")

    def _entity(self, key: str, tables: dict[str, dict[str, object]]) -> object | None:
        kind, _, name = key.partition("/")
        return self.header if kind == "header" else tables[kind].get(name)

    def _tables(self) -> dict[str, dict[str, object]]:
        return {
            "job": self.jobs,  # type: ignore[dict-item]
            "finished": self.finished,  # type: ignore[dict-item]
            "node": self.nodes,  # type: ignore[dict-item]
            "writer": self.writers,  # type: ignore[dict-item]
            "queue": self.queues,  # type: ignore[dict-item]
            "maintenance": self.maintenance,  # type: ignore[dict-item]
        }

    def remember_spec(self, job: str, spec: JobSpec) -> str:
        """Keep the job's specification and what is derived from it; return its digest."""
        self.specs[job] = spec
        self.floors[job] = member_floor(spec)
        return blake3(msgspec.json.encode(spec)).hexdigest()

    def forget_node(self, node: Node) -> None:
        """Keep nothing of a node, if it is lost; what it is told to end is ended by name, should it come back.

        The mark of its agent in `writers` stays: a fact of it that the bus delivers late, a second time, must change
        nothing, and without the mark the oldest of them would let a node join that is gone. It is a name and two
        numbers.
        """
        if node.status != "lost":
            return
        del self.nodes[node.name]
        self.touch(f"node/{node.name}")
        for zombie in node.zombies:
            self.forget_spec(zombie.job)

    def forget_spec(self, job: str) -> None:
        """Drop the specification of an ended job, unless a zombie of it must still be told to end."""
        if job in self.jobs or self.zombies.nodes_with(job):
            return
        self.specs.pop(job, None)
        self.floors.pop(job, None)
