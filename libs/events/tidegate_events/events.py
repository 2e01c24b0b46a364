"""Every event of the journal: frozen, in past tense, tagged with its kind and its version.

Facts say what was seen, decisions say what it means for a job; `contract.py` says who may write which. From the
first tagged release on, a version never changes: a changed event gets a new version and an upcaster.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tidegate_events.checkpoint_facts import CheckpointFailed as CheckpointFailed
from tidegate_events.checkpoint_facts import CheckpointPartFailed as CheckpointPartFailed
from tidegate_events.checkpoint_facts import CheckpointPartPromoted as CheckpointPartPromoted
from tidegate_events.checkpoint_facts import CheckpointPartSaved as CheckpointPartSaved
from tidegate_events.checkpoint_facts import CheckpointSaved as CheckpointSaved
from tidegate_events.checkpoint_facts import CheckpointVerified as CheckpointVerified
from tidegate_events.cluster import DecisionPass as DecisionPass
from tidegate_events.cluster import ImagePrefetchHinted as ImagePrefetchHinted
from tidegate_events.cluster import LeaderElected as LeaderElected
from tidegate_events.cluster import NodeCordoned as NodeCordoned
from tidegate_events.cluster import NodeForgotten as NodeForgotten
from tidegate_events.cluster import NodeLost as NodeLost
from tidegate_events.cluster import NodeReachable as NodeReachable
from tidegate_events.cluster import NodeUnreachable as NodeUnreachable
from tidegate_events.cluster import PolicyChanged as PolicyChanged
from tidegate_events.envelope import AttemptEvent as AttemptEvent
from tidegate_events.envelope import Decision as Decision
from tidegate_events.envelope import Event as Event
from tidegate_events.envelope import JobEvent as JobEvent
from tidegate_events.node_facts import ImageCached as ImageCached
from tidegate_events.node_facts import ImageEvicted as ImageEvicted
from tidegate_events.node_facts import ImageUnavailable as ImageUnavailable
from tidegate_events.node_facts import NodeImagesChanged as NodeImagesChanged
from tidegate_events.node_facts import NodeJoined as NodeJoined
from tidegate_events.operations import HoldRequested as HoldRequested
from tidegate_events.operations import JobLimitChanged as JobLimitChanged
from tidegate_events.operations import JobPriorityChanged as JobPriorityChanged
from tidegate_events.operations import MaintenanceCancelled as MaintenanceCancelled
from tidegate_events.operations import MaintenancePlanned as MaintenancePlanned
from tidegate_events.operations import NodeDrainRequested as NodeDrainRequested
from tidegate_events.operations import NodeForgetRequested as NodeForgetRequested
from tidegate_events.operations import NodeResumeRequested as NodeResumeRequested
from tidegate_events.operations import QueueChanged as QueueChanged
from tidegate_events.operations import ReleaseRequested as ReleaseRequested
from tidegate_events.operations import RequeueRequested as RequeueRequested
from tidegate_events.operations import ResumeRequested as ResumeRequested
from tidegate_events.operations import SuspendRequested as SuspendRequested
from tidegate_events.records import CheckpointRef as CheckpointRef
from tidegate_events.records import HeldSandbox as HeldSandbox
from tidegate_events.records import LayerRef as LayerRef
from tidegate_events.records import MemberPlacement as MemberPlacement
from tidegate_events.records import Quota as Quota
from tidegate_events.records import Reason as Reason
from tidegate_events.resources import Resources
from tidegate_events.spec import JobSpec

Outcome = Literal["completed", "suspended", "failed", "stopped", "lost"]
Scalar = str | int | float | bool | None


# ---- facts: gateway (what operators ask for is in `operations.py`) ----


class JobSubmitted(JobEvent, frozen=True, kw_only=True):
    """A validated job was accepted."""

    spec: JobSpec


class CancelRequested(JobEvent, frozen=True, kw_only=True):
    """A user asked for the job to end."""

    actor: str = ""


# ---- facts: node agent (those about checkpoints are in `checkpoint_facts.py`) ----


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
    result: dict[str, Scalar] = msgspec.field(default_factory=dict)


class PhaseChanged(AttemptEvent, frozen=True, kw_only=True):
    """The training code entered another phase (faster flips than the minimum dwell are not journaled)."""

    rank: int
    phase: str
    step: int | None = None


class PhaseRequested(AttemptEvent, frozen=True, kw_only=True):
    """The training code waits to enter `phase` (empty: no longer), and goes on in the one it is in until then."""

    rank: int
    phase: str
    step: int | None = None


class ProgressReported(AttemptEvent, frozen=True, kw_only=True):
    """The job says how far it is, in thousandths of the whole (journaled when it moved by 50 of them or more)."""

    rank: int
    progress_millis: int
    step: int | None = None


class QuotaApplied(AttemptEvent, frozen=True, kw_only=True):
    """The kernel now enforces these limits, read back from it after the change."""

    rank: int
    node: str
    quotas: tuple[Quota, ...]
    enforced: bool = True


class ShrinkRefused(AttemptEvent, frozen=True, kw_only=True):
    """The kernel keeps these limits: what is in use does not fit lower ones. Told once for each change of them."""

    rank: int
    node: str
    quotas: tuple[Quota, ...]


class HandBackFailed(AttemptEvent, frozen=True, kw_only=True):
    """The job says that it cannot hand back the devices that are recalled. Told once for each recall."""

    rank: int
    phase: str
    reason: Reason


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


# ---- decisions (those about the cluster are in `cluster.py`) ----


class JobRejected(Decision, frozen=True, kw_only=True):
    """A submitted job can never run in this cluster."""


class JobPlaced(Decision, frozen=True, kw_only=True):
    """All members of the job's next attempt got their places; `resume` is the checkpoint to continue from.

    `backfills` are the jobs for which room is kept that this one has until they come.
    """

    attempt: int
    members: tuple[MemberPlacement, ...]
    resume: CheckpointRef | None = None
    backfills: tuple[str, ...] = ()


class JobStarted(Decision, frozen=True, kw_only=True):
    """Every member of an attempt that began afresh is running."""

    attempt: int


class JobResumed(Decision, frozen=True, kw_only=True):
    """Every member of an attempt that continues from a checkpoint is running."""

    attempt: int
    checkpoint_id: str
    step: int


class QuotaChanged(Decision, frozen=True, kw_only=True):
    """The member's limits shall become these.

    `phase`: it may enter this one once they hold. `gpu_indices`: the devices it has from then on (None: as before), the
    leased ones last, and `gpu_millis` the share that it has of its one device then (None: as before). Of what it has
    beyond its floor, `leased` belongs to others and may be recalled, and `extra` was nobody's and counts as held; None:
    nothing.
    """

    attempt: int
    rank: int
    quotas: tuple[Quota, ...]
    phase: str = ""
    gpu_indices: tuple[int, ...] | None = None
    leased: Resources | None = None
    extra: Resources | None = None
    gpu_millis: int | None = None


class HandBackRequested(Decision, frozen=True, kw_only=True):
    """The member shall leave its leased phase by `deadline_ns`, for `for_job`; else it is asked to leave altogether.

    0: it need not any more, since nobody waits for what it has.
    """

    attempt: int
    rank: int
    deadline_ns: int
    for_job: str


class RoomReserved(Decision, frozen=True, kw_only=True):
    """Room on these nodes (none: no more) belongs to the job until it is placed or ends.

    `start_by_ns` is when that room is expected to be free; 0: not known.
    """

    nodes: tuple[str, ...]
    start_by_ns: int = 0


class PreemptRequested(Decision, frozen=True, kw_only=True):
    """The job shall save a checkpoint and leave before `deadline_ns`, for `for_job` (empty: for the reason given).

    `hold`: an operator suspends it, so it stays held afterwards.
    """

    attempt: int
    grace_seconds: int
    deadline_ns: int
    for_job: str
    hold: bool = False


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
    result: dict[str, Scalar] = msgspec.field(default_factory=dict)


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
    | HoldRequested
    | ReleaseRequested
    | SuspendRequested
    | ResumeRequested
    | RequeueRequested
    | JobPriorityChanged
    | JobLimitChanged
    | QueueChanged
    | NodeDrainRequested
    | NodeResumeRequested
    | NodeForgetRequested
    | MaintenancePlanned
    | MaintenanceCancelled
    | NodeJoined
    | NodeImagesChanged
    | ImageCached
    | ImageEvicted
    | ImageUnavailable
    | PlacementRejected
    | SandboxStarted
    | SandboxExited
    | PhaseChanged
    | PhaseRequested
    | ProgressReported
    | QuotaApplied
    | ShrinkRefused
    | HandBackFailed
    | CheckpointSaved
    | CheckpointFailed
    | CheckpointVerified
    | CheckpointPartSaved
    | CheckpointPartFailed
    | CheckpointPartPromoted
    | StepRateLow
    | StepRateRecovered
    | GenerationOpened
    | LeaderElected
    | PolicyChanged
    | DecisionPass
    | NodeUnreachable
    | NodeReachable
    | NodeLost
    | NodeCordoned
    | NodeForgotten
    | ImagePrefetchHinted
    | JobRejected
    | JobPlaced
    | JobStarted
    | JobResumed
    | QuotaChanged
    | HandBackRequested
    | RoomReserved
    | PreemptRequested
    | StopRequested
    | JobSuspended
    | JobRequeued
    | JobCompleted
    | JobFailed
    | JobCancelled
)
