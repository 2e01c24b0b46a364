"""Every event of the journal: frozen, in past tense, tagged with its kind and its version.

Facts say what was seen, decisions say what it means for a job; `contract.py` says who may write which. From the
first tagged release on, a version never changes: a changed event gets a new version and an upcaster.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tidegate_events.records import CheckpointRef as CheckpointRef
from tidegate_events.records import HeldSandbox as HeldSandbox
from tidegate_events.records import LayerRef as LayerRef
from tidegate_events.records import MemberPlacement as MemberPlacement
from tidegate_events.records import Quota as Quota
from tidegate_events.records import Reason as Reason
from tidegate_events.resources import GpuDevice, Resources
from tidegate_events.spec import JobSpec

Outcome = Literal["completed", "suspended", "failed", "stopped", "lost"]
Scalar = str | int | float | bool | None
FirstVersion = Annotated[int, msgspec.Meta(ge=1, le=1)]
"""The version of every event that was never changed; a changed one has its own field `v`, without a default."""


class Event(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag_field="kind", tag=True):
    """What every event carries. `id` is unique in the journal; `at_ns` is Unix time in nanoseconds by its writer.

    `cause` names the event that led to this one as `"<stream sequence>.<index in frame>"`; empty where there is none.
    """

    id: str
    at_ns: int
    v: FirstVersion = 1
    cause: str = ""


class JobEvent(Event, frozen=True, kw_only=True):
    """An event about one job. `traceparent` ties it to the job's trace (W3C Trace Context)."""

    tenant: str
    job: str
    traceparent: str = ""


class AttemptEvent(JobEvent, frozen=True, kw_only=True):
    """An event about one attempt of a job; void when another attempt has begun."""

    attempt: int


class Decision(JobEvent, frozen=True, kw_only=True):
    """A decision about one job, taken at `revision`: void when the job has moved on since."""

    revision: int
    reasons: tuple[Reason, ...] = ()


# ---- facts: gateway ----


class JobSubmitted(JobEvent, frozen=True, kw_only=True):
    """A validated job was accepted."""

    spec: JobSpec


class CancelRequested(JobEvent, frozen=True, kw_only=True):
    """A user asked for the job to end."""

    actor: str = ""


# ---- facts: node agent ----


class NodeJoined(Event, frozen=True, kw_only=True):
    """A node agent (re)started: what it has, and which sandboxes it still holds."""

    node: str
    incarnation: int
    capacity: Resources
    levels: tuple[str, ...]
    images: dict[str, str] = {}
    gpus: tuple[GpuDevice, ...] = ()
    cpu_model: str = ""
    isa: str = ""
    sandboxes: tuple[HeldSandbox, ...] = ()


class PlacementRejected(AttemptEvent, frozen=True, kw_only=True):
    """The node could not take the member; nothing of it was started there."""

    rank: int
    node: str
    reason: Reason


class SandboxStarted(AttemptEvent, frozen=True, kw_only=True):
    """All processes of the member's sandbox run, `start_ms` after the order; `prepare_ms` of it got the image ready."""

    rank: int
    node: str
    level: str
    image_digest: str = ""
    start_ms: int = 0
    prepare_ms: int = 0


class SandboxExited(AttemptEvent, frozen=True, kw_only=True):
    """The member's sandbox is gone. `lost` means infrastructure: it is never the job's own failure."""

    rank: int
    node: str
    outcome: Outcome
    exit_code: int | None = None
    signal: int | None = None
    oom: bool = False
    acknowledged: bool = False
    last_step: int | None = None
    detail: str = ""
    result: dict[str, Scalar] = {}


class PhaseChanged(AttemptEvent, frozen=True, kw_only=True):
    """The training code entered another phase (faster flips than the minimum dwell are not journaled)."""

    rank: int
    phase: str
    step: int | None = None


class QuotaApplied(AttemptEvent, frozen=True, kw_only=True):
    """The kernel now enforces these limits, read back from it after the change."""

    rank: int
    node: str
    quotas: tuple[Quota, ...]
    enforced: bool = True


class CheckpointSaved(AttemptEvent, frozen=True, kw_only=True):
    """A checkpoint was committed and is durable in `tier`."""

    rank: int
    node: str
    checkpoint: CheckpointRef
    tier: Literal["hot", "warm", "cold"] = "hot"


class CheckpointFailed(AttemptEvent, frozen=True, kw_only=True):
    """A checkpoint could not be written (`stage="save"`) or did not verify (`stage="verify"`)."""

    stage: Literal["save", "verify"]
    reason: Reason
    checkpoint_id: str = ""
    step: int | None = None


# ---- facts: checkpoint service ----


class CheckpointVerified(AttemptEvent, frozen=True, kw_only=True):
    """Every byte of a saved checkpoint was read back and its hashes agree."""

    checkpoint_id: str
    size_bytes: int


# ---- facts: metrics service ----


class StepRateLow(AttemptEvent, frozen=True, kw_only=True):
    """The job stayed below its declared step rate for whole windows. Rates are in thousandths of a step per second."""

    rate_millis: int
    target_millis: int
    window_seconds: int


class StepRateRecovered(AttemptEvent, frozen=True, kw_only=True):
    """The job's step rate is back above its target, by a margin, for whole windows."""

    rate_millis: int
    target_millis: int
    window_seconds: int


# ---- facts: keeper ----


class GenerationOpened(Event, frozen=True, kw_only=True):
    """Generation `generation` of the journal begins at `first_seq`, and what lay before it is sealed.

    `sealed_digest` is the chain digest of the sealed generation's `sealed_frames` frames. `snapshot` names the state
    after the last of them, which was written, read back and decoded, and whose digest is `state_digest`.
    """

    generation: int
    first_seq: int
    sealed_frames: int
    sealed_digest: str
    snapshot: str
    state_digest: str


# ---- decisions ----


class LeaderElected(Event, frozen=True, kw_only=True):
    """A scheduler took the lead; frames of lower epochs can no longer be appended."""

    epoch: int
    instance: str


class PolicyChanged(Event, frozen=True, kw_only=True):
    """The policy and its parameters from here on."""

    policy: int
    parameters: dict[str, int]


class DecisionPass(Event, frozen=True, kw_only=True):
    """One scheduling pass: decided on the state after `at_seq`, at `now_ns`, whose digest was `state_digest`."""

    epoch: int
    at_seq: int
    now_ns: int
    core: str
    policy: int
    state_digest: str
    decisions: int


class NodeUnreachable(Event, frozen=True, kw_only=True):
    """The leader heard no heartbeat of the node for its bound; what runs there is not lost yet."""

    node: str
    incarnation: int


class NodeReachable(Event, frozen=True, kw_only=True):
    """The leader hears the node's heartbeats again."""

    node: str
    incarnation: int


class NodeLost(Event, frozen=True, kw_only=True):
    """The node stayed unreachable past its bound: all that ran there counts as lost."""

    node: str
    incarnation: int


class JobRejected(Decision, frozen=True, kw_only=True):
    """A submitted job can never run in this cluster."""


class JobPlaced(Decision, frozen=True, kw_only=True):
    """All members of the job's next attempt got their places; `resume` is the checkpoint to continue from."""

    attempt: int
    members: tuple[MemberPlacement, ...]
    resume: CheckpointRef | None = None


class JobStarted(Decision, frozen=True, kw_only=True):
    """Every member of an attempt that began afresh is running."""

    attempt: int


class JobResumed(Decision, frozen=True, kw_only=True):
    """Every member of an attempt that continues from a checkpoint is running."""

    attempt: int
    checkpoint_id: str
    step: int


class QuotaChanged(Decision, frozen=True, kw_only=True):
    """The member's limits shall become these."""

    attempt: int
    rank: int
    quotas: tuple[Quota, ...]


class RoomReserved(Decision, frozen=True, kw_only=True):
    """Room on these nodes (none: no more) belongs to the job until it is placed or ends."""

    nodes: tuple[str, ...]


class PreemptRequested(Decision, frozen=True, kw_only=True):
    """The job shall save a checkpoint and leave before `deadline_ns`, for `for_job` (empty: its node shrank)."""

    attempt: int
    grace_seconds: int
    deadline_ns: int
    for_job: str


class StopRequested(Decision, frozen=True, kw_only=True):
    """The attempt shall end for good or for another try, before `deadline_ns`."""

    attempt: int
    grace_seconds: int
    deadline_ns: int


class JobSuspended(Decision, frozen=True, kw_only=True):
    """The job left and waits to resume. `acknowledged=False` means it lost what came after its last checkpoint."""

    attempt: int
    acknowledged: bool
    checkpoint_id: str = ""
    step: int | None = None
    lost_steps: int = 0


class JobRequeued(Decision, frozen=True, kw_only=True):
    """The attempt ended without finishing the job, which goes back to the queue until `not_before_ns`."""

    attempt: int
    outcome: Outcome
    not_before_ns: int
    lost_steps: int = 0


class JobCompleted(Decision, frozen=True, kw_only=True):
    """The job finished by its own word or by exit code 0."""

    attempt: int
    result: dict[str, Scalar] = {}


class JobFailed(Decision, frozen=True, kw_only=True):
    """The job ended unsuccessfully and will not be tried again; the reasons say whose fault it was."""

    attempt: int
    exit_code: int | None = None
    signal: int | None = None
    oom: bool = False
    lost_steps: int = 0


class JobCancelled(Decision, frozen=True, kw_only=True):
    """The job ended because somebody asked for it."""

    attempt: int
    lost_steps: int = 0


AnyEvent = (
    JobSubmitted
    | CancelRequested
    | NodeJoined
    | PlacementRejected
    | SandboxStarted
    | SandboxExited
    | PhaseChanged
    | QuotaApplied
    | CheckpointSaved
    | CheckpointFailed
    | CheckpointVerified
    | StepRateLow
    | StepRateRecovered
    | GenerationOpened
    | LeaderElected
    | PolicyChanged
    | DecisionPass
    | NodeUnreachable
    | NodeReachable
    | NodeLost
    | JobRejected
    | JobPlaced
    | JobStarted
    | JobResumed
    | QuotaChanged
    | RoomReserved
    | PreemptRequested
    | StopRequested
    | JobSuspended
    | JobRequeued
    | JobCompleted
    | JobFailed
    | JobCancelled
)
