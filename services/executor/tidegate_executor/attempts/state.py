"""What the agent knows of one sandbox: what was ordered, started, said, exited and reported. Kept on disk as JSON."""

from __future__ import annotations

from typing import Literal

import msgspec
from tidegate_events.events import Outcome, Quota, Scalar

from tidegate_executor.attempts.asks import AskState
from tidegate_executor.attempts.phases import PhaseState
from tidegate_executor.attempts.progress import ProgressState

Stage = Literal["starting", "running", "ending", "ended", "rejected"]
ReplicaStatus = Literal["waiting", "starting", "running", "exited"]
CLIENTS_MAX = 512  # processes of one sandbox whose message numbers are remembered, the newest


class _Part(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Common options."""


class Replica(_Part, frozen=True, kw_only=True):
    """One process of a component. `starts` counts the starts that were ordered, so a restart is one more.

    `waiting`: to be started, not before `not_before_ns`. `starting`: the order to start it is on disk, and may or may
    not have been carried out. `final`: it exited and will not be started again.
    `leave_by_ns`: it is one too many, was told to leave, and is killed then.
    """

    component: str
    replica: int
    status: ReplicaStatus = "waiting"
    starts: int = 0
    not_before_ns: int = 0
    exit_code: int | None = None
    signal: int | None = None
    oom: bool = False
    final: bool = False
    connected: bool = False
    leave_by_ns: int = 0

    @property
    def name(self) -> str:
        """Return what people call it."""
        return f"{self.component}.{self.replica}"

    @property
    def is_done(self) -> bool:
        """Say whether it exited for good."""
        return self.status == "exited" and self.final

    @property
    def failed(self) -> bool:
        """Say whether it exited for good, and badly."""
        return self.is_done and (self.signal is not None or self.exit_code != 0)


class Stop(_Part, frozen=True, kw_only=True):
    """The scheduler wants it gone by `deadline_ns`."""

    desired: Literal["suspend", "stop"]
    deadline_ns: int
    reason: str = ""


class Failure(_Part, frozen=True, kw_only=True):
    """Why the sandbox is ended by the agent: whose fault, in words, and when it was seen."""

    fault: Literal["job", "infrastructure"]
    detail: str
    at_ns: int = 0
    exit_code: int | None = None
    signal: int | None = None
    oom: bool = False


class SavedMark(_Part, frozen=True, kw_only=True):
    """The newest checkpoint that was reported."""

    directory: str
    step: int


class AttemptState(_Part, frozen=True, kw_only=True):
    """See the module. Everything is as of the facts and messages that are on disk with it.

    `begun`: its commands were allowed to run, which in a gang waits for every member.
    `granted`, `hand_back_ns` and `gpu_indices` (None: those of the first order) are the newest order's, which was made
    from the journal up to `order_seq`; 0: none has come since the agent's start.
    `not_freed_ns` is the recall of which it was told that it fails.
    `disk_full` is what of its sandbox's disk was used up when nothing ran in it any more.
    `shrinks_refused` are the quotas of which it was told that the kernel keeps higher ones.
    """

    job: str
    tenant: str
    attempt: int
    rank: int
    traceparent: str = ""
    stage: Stage = "starting"
    level: str = ""
    image_digest: str = ""
    uid_slot: int = 0
    ordered_ns: int = 0
    prepared_ns: int = 0
    replicas: tuple[Replica, ...] = ()
    history_offset: int = 0
    sandbox_over: bool = False
    collapsed: bool = False
    stop: Stop | None = None
    failure: Failure | None = None
    spoke: bool = False
    acknowledged: bool = False
    finished: bool = False
    result: dict[str, Scalar] = {}
    last_step: int | None = None
    phase: PhaseState = PhaseState()
    quotas_wanted: tuple[Quota, ...] = ()
    quotas_asked: tuple[Quota, ...] = ()
    quotas_reported: tuple[Quota, ...] = ()
    quotas_retry_ns: int = 0
    marks: dict[str, int] = {}
    saved: SavedMark | None = None
    outcome: Outcome | None = None
    ended_ns: int = 0
    begun: bool = False
    progress: ProgressState = ProgressState()
    asks: AskState = AskState()
    granted: str = ""
    order_seq: int = 0
    hand_back_ns: int = 0
    not_freed_ns: int = 0
    gpu_indices: tuple[int, ...] | None = None
    shrinks_refused: tuple[Quota, ...] = ()
    disk_full: str = ""

    @property
    def id(self) -> str:
        """Return the sandbox's id."""
        return sandbox_id(self.job, self.attempt, self.rank)

    @property
    def is_over(self) -> bool:
        """Say whether nothing of it is left and its last fact is on disk."""
        return self.stage in ("ended", "rejected")

    def replicas_of(self, component: str) -> tuple[Replica, ...]:
        """Return the component's replicas."""
        return tuple(replica for replica in self.replicas if replica.component == component)


def sandbox_id(job: str, attempt: int, rank: int) -> str:
    """Return the id of a member's sandbox."""
    return f"{job}.{attempt}.{rank}"


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AttemptState)


def encode(state: AttemptState) -> msgspec.Raw:
    """Return the state as JSON."""
    return msgspec.Raw(_encoder.encode(state))


def decode(data: bytes) -> AttemptState:
    """Return the state in `data`; raises msgspec.MsgspecError for anything else."""
    return _decoder.decode(data)
