"""What the gateway knows of jobs and nodes: the result of folding the journal, held in bounded memory."""

from __future__ import annotations

from collections import deque
from typing import Literal

import msgspec
from tidegate_events.events import CheckpointRef, Event, MemberPlacement, Quota, Reason, Scalar
from tidegate_events.frame import Writer
from tidegate_events.resources import GpuDevice, Resources
from tidegate_events.spec import DEFAULT_PHASE, JobSpec

JobState = Literal[
    "pending",
    "placed",
    "running",
    "suspending",
    "stopping",
    "suspended",
    "completed",
    "failed",
    "cancelled",
    "rejected",
]
SandboxState = Literal["starting", "running", "exited", "rejected", "lost"]
AttemptState = Literal[
    "placed", "running", "suspending", "stopping", "suspended", "requeued", "completed", "failed", "cancelled"
]

JOB_STATES: tuple[JobState, ...] = (
    "pending",
    "placed",
    "running",
    "suspending",
    "stopping",
    "suspended",
    "completed",
    "failed",
    "cancelled",
    "rejected",
)
WAITING_STATES = frozenset({"pending", "suspended"})
ENDED_STATES = frozenset({"completed", "failed", "cancelled", "rejected"})

TIMELINE_FIRST_MAX = 100
TIMELINE_NEWEST_MAX = 900
ATTEMPTS_MAX = 50
CHECKPOINTS_MAX = 200
ENDED_JOBS_MAX = 5000
WINDOWS_MAX = 1000
"""Maintenance windows that are kept, those that are over included."""
WINDOWS_AHEAD_MAX = 100
"""As many as the scheduler keeps that are not over; a plan for more is void."""


class Exit(msgspec.Struct, frozen=True):
    """How a member's sandbox ended."""

    outcome: str
    exit_code: int | None = None
    signal: int | None = None
    oom: bool = False
    acknowledged: bool = False
    last_step: int | None = None
    detail: str = ""


class Member(msgspec.Struct):
    """One member of an attempt; `desired` is what was decided, `observed` what the node read back from the kernel."""

    placement: MemberPlacement
    desired: dict[str, Quota]
    sandbox: SandboxState = "starting"
    observed: dict[str, Quota] = {}
    enforced: bool | None = None
    level: str = ""
    image_digest: str = ""
    start_ms: int | None = None
    phase: str = DEFAULT_PHASE
    step: int | None = None
    progress_millis: int | None = None
    exit: Exit | None = None

    @property
    def active(self) -> bool:
        """Say whether the member still holds its room."""
        return self.sandbox in ("starting", "running")


class Attempt(msgspec.Struct):
    """One try to run a job."""

    number: int
    placed_at_ns: int
    members: list[Member]
    resume: CheckpointRef | None
    state: AttemptState = "placed"
    started_at_ns: int | None = None
    ended_at_ns: int | None = None
    lost_steps: int = 0
    outcome: str | None = None


class Checkpoint(msgspec.Struct):
    """A checkpoint that a job saved, and what became of it."""

    ref: CheckpointRef
    rank: int
    node: str
    tier: str
    saved_at_ns: int
    seq: int
    status: Literal["saved", "verified", "failed"] = "saved"
    failure: Reason | None = None


class Entry(msgspec.Struct, frozen=True):
    """An event in its place in history. `void` says that it came too late to change anything."""

    seq: int
    index: int
    event: Event
    writer: Writer
    void: bool


class Timeline:
    """The events of one job: the first ones, the newest ones, and how many between them were dropped."""

    __slots__ = ("_first", "_newest", "dropped")

    def __init__(self) -> None:
        self._first: list[Entry] = []
        self._newest: deque[Entry] = deque()
        self.dropped = 0

    @classmethod
    def restored(cls, first: list[Entry], newest: list[Entry], dropped: int) -> Timeline:
        """Return a timeline as it was left: its first entries, its newest ones, and how many are between them."""
        timeline = cls()
        timeline._first, timeline._newest, timeline.dropped = first, deque(newest), dropped
        return timeline

    def add(self, entry: Entry) -> None:
        """Append an event, dropping the oldest of the newest ones where there are too many."""
        if len(self._first) < TIMELINE_FIRST_MAX:
            self._first.append(entry)
            return
        if len(self._newest) >= TIMELINE_NEWEST_MAX:
            self._newest.popleft()
            self.dropped += 1
        self._newest.append(entry)

    @property
    def absent(self) -> bool:
        """Say whether the beginning is not here: the job had ended when the view was loaded, and is read elsewhere."""
        return self.dropped > 0 and len(self._first) < TIMELINE_FIRST_MAX

    def reaches(self, after: tuple[int, int], last: int | None = None) -> bool:
        """Say whether all that comes after a place is kept, or the `last` so many events are."""
        if self.dropped == 0:
            return True
        if last is not None:
            return last <= len(self._newest)
        return bool(self._newest) and after >= (self._newest[0].seq, self._newest[0].index)

    def entries(self) -> list[Entry]:
        """Return what is kept, in order."""
        return [*self._first, *self._newest]


class Act(msgspec.Struct, frozen=True):
    """What somebody asked for: `kind` names the event, `attempt` is the one that its job was at."""

    kind: str
    actor: str
    note: str
    at_ns: int
    attempt: int = 0


class Job(msgspec.Struct):
    """A job. `revision` goes up with whatever changes it for the scheduler, so that a stale decision is known."""

    id: str
    tenant: str
    spec: JobSpec
    spec_digest: str
    submitted_seq: int
    submitted_at_ns: int
    timeline: Timeline
    priority: int
    """As submitted, until somebody changed it; so is the limit."""
    time_limit_seconds: int | None
    state: JobState = "pending"
    revision: int = 0
    attempt: int = 0
    attempts: list[Attempt] = []
    attempts_dropped: int = 0
    checkpoints: list[Checkpoint] = []
    checkpoints_dropped: int = 0
    resumable: list[tuple[int, int, str]] = []
    """(attempt, step, id) of the checkpoints that the scheduler would resume from."""
    started_at_ns: int | None = None
    ended_at_ns: int | None = None
    preemptions: int = 0
    resumed_step: int | None = None
    lost_steps: int = 0
    cancel_requested: bool = False
    held: bool = False
    suspend_requested: bool = False
    requeue_requested: bool = False
    asked: Act | None = None
    """What somebody asked last of the job, cancellation and new values apart."""
    reasons: tuple[Reason, ...] = ()
    result: dict[str, Scalar] = {}
    events: int = 0
    """How many events there are about it, those that were dropped from its timeline included."""
    ended_order: int | None = None
    """Counts the jobs that ended, in the journal's order."""

    @property
    def waiting(self) -> bool:
        """Say whether the job stands in the queue."""
        return self.state in WAITING_STATES

    @property
    def ended(self) -> bool:
        """Say whether the job came to its end."""
        return self.state in ENDED_STATES

    @property
    def latest(self) -> Attempt | None:
        """Return the newest attempt."""
        return self.attempts[-1] if self.attempts else None

    def member(self, attempt: int, rank: int) -> Member | None:
        """Return the member of the current attempt that a fact speaks of; None when it speaks of another one."""
        latest = self.latest
        if latest is None or attempt != self.attempt or self.waiting or self.ended:
            return None
        return next((member for member in latest.members if member.placement.rank == rank), None)


class Forgotten(msgspec.Struct, frozen=True):
    """What is kept of a job that ended long ago: enough for an answer, and for a retried submission."""

    tenant: str
    state: JobState
    spec_digest: str


class Hold(msgspec.Struct):
    """A sandbox on a node that has not been seen to exit."""

    tenant: str
    sandbox: SandboxState
    amount: Resources


class Drain(msgspec.Struct, frozen=True):
    """The node's jobs shall be gone by `deadline_ns`."""

    deadline_ns: int
    actor: str
    note: str
    since_ns: int


class Node(msgspec.Struct):
    """A node as it last joined, what was asked of it since, and what it holds by (job, attempt, rank)."""

    name: str
    incarnation: int
    capacity: Resources
    levels: tuple[str, ...]
    images: dict[str, str]
    gpus: tuple[GpuDevice, ...]
    cpu_model: str
    isa: str
    joined_at_ns: int
    state: Literal["reachable", "unreachable", "lost"] = "reachable"
    state_since_ns: int = 0
    holds: dict[tuple[str, int, int], Hold] = {}
    rack: str = ""
    switch: str = ""
    gpu_levels: tuple[str, ...] | None = None
    """Those of its levels at which a sandbox can have GPUs; None: all of them."""

    drain: Drain | None = None
    cordoned: tuple[Reason, ...] = ()
    """Why the scheduler keeps jobs away; empty where it does not."""
    cordoned_ns: int = 0
    resumed: bool = False
    """Whether the last thing that was asked of it is to take jobs again."""


class Queue(msgspec.Struct, frozen=True):
    """A tenant's queue as it was set last; one that nobody set is at these defaults."""

    tenant: str
    weight: int = 1
    guaranteed: Resources | None = None
    ceiling: Resources | None = None
    stopped: bool = False
    actor: str = ""
    note: str = ""
    changed_ns: int | None = None


class Maintenance(msgspec.Struct, frozen=True):
    """A window in which nothing shall run on its nodes."""

    name: str
    nodes: tuple[str, ...]
    start_ns: int
    end_ns: int
    actor: str
    note: str
    planned_ns: int
    cancelled: bool = False
    cancelled_by: str = ""

    def is_over(self, now_ns: int) -> bool:
        """Say whether it ended, or was cancelled."""
        return self.cancelled or self.end_ns <= now_ns


class WriterSeen(msgspec.Struct):
    """The newest frame of one writer; older ones are late duplicates."""

    epoch: int
    writer_seq: int
    last_seq: int
    last_at_ns: int


class Leader(msgspec.Struct):
    """The scheduler that leads."""

    epoch: int
    instance: str
    last_pass_seq: int | None = None
    last_pass_at_ns: int | None = None


class Progress(msgspec.Struct, kw_only=True):
    """Where a fold stands, beside the jobs, nodes and writers themselves."""

    seq: int = 0
    events: int = 0
    void_events: int = 0
    passes: int = 0
    decisions: int = 0
    policy: int = 0
    ended: int = 0
    leader: Leader | None = None
