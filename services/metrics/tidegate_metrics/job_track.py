"""What the journal's metrics remember of a job and of a node."""

from __future__ import annotations

from typing import Literal

import msgspec
from tidegate_events.spec import JobSpec, member_floor

Stage = Literal["waiting", "placed", "running", "preempting", "stopping"]


class MemberTrack(msgspec.Struct):
    """One member of the current attempt; `active` while it holds its room."""

    rank: int
    node: str
    gpus: int
    status: Literal["ordered", "started", "gone"] = "ordered"

    @property
    def active(self) -> bool:
        """Say whether it holds its room."""
        return self.status != "gone"


class JobTrack(msgspec.Struct):
    """A job that has not ended. `since_ns` is when it began to wait, or when its attempt was placed."""

    id: str
    tenant: str
    traceparent: str
    main_component: str
    target_steps_per_second: int | None
    floor_gpus: int
    since_ns: int
    stage: Stage = "waiting"
    attempt: int = 0
    revision: int = 0
    members: list[MemberTrack] = []
    started_ns: int = 0
    saved_ns: int = 0
    preempt_ns: int = 0
    rate_low: bool = False
    cancel_requested: bool = False
    held: bool = False
    suspend_requested: bool = False
    requeue_requested: bool = False

    @property
    def gpus(self) -> int:
        """Return the GPUs that the attempt was given."""
        return sum(member.gpus for member in self.members)

    @property
    def gpus_held(self) -> int:
        """Return the GPUs of the members that are there."""
        return sum(member.gpus for member in self.members if member.active)

    @property
    def gpus_lent(self) -> int:
        """Return the GPUs held beyond what the job is guaranteed."""
        return sum(max(0, member.gpus - self.floor_gpus) for member in self.members if member.active)

    def member(self, attempt: int, rank: int) -> MemberTrack | None:
        """Return a member of the current attempt; None where another attempt is meant."""
        if attempt != self.attempt:
            return None
        return next((member for member in self.members if member.rank == rank), None)


class NodeTrack(msgspec.Struct):
    """A node and its GPUs."""

    incarnation: int
    gpus: int
    status: Literal["up", "unreachable", "lost"] = "up"


def new_job(job: str, tenant: str, traceparent: str, spec: JobSpec, at_ns: int) -> JobTrack:
    """Return the track of a job that was just submitted."""
    return JobTrack(
        id=job,
        tenant=tenant,
        traceparent=traceparent,
        main_component=spec.main_component.name,
        target_steps_per_second=spec.target_steps_per_second,
        floor_gpus=member_floor(spec).gpus,
        since_ns=at_ns,
    )
