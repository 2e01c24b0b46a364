"""What operators ask for, as facts of the gateway: each says who asked (`actor`) and, where told, why (`note`).

They name no revision: what they mean for a job is void only when the job has ended.
"""

from __future__ import annotations

from tidegate_events.envelope import Event, JobEvent
from tidegate_events.resources import Resources

# ---- about a job ----


class HoldRequested(JobEvent, frozen=True, kw_only=True):
    """The job shall not be placed. One that runs goes on, and is held once it is back in the queue."""

    actor: str
    note: str = ""


class ReleaseRequested(JobEvent, frozen=True, kw_only=True):
    """The job is no longer held."""

    actor: str
    note: str = ""


class SuspendRequested(JobEvent, frozen=True, kw_only=True):
    """The job shall leave gracefully, and then be held."""

    actor: str
    note: str = ""


class ResumeRequested(JobEvent, frozen=True, kw_only=True):
    """The job is no longer held, nor asked to leave by an operator."""

    actor: str
    note: str = ""


class RequeueRequested(JobEvent, frozen=True, kw_only=True):
    """The job shall leave gracefully and wait for another attempt."""

    actor: str
    note: str = ""


class JobPriorityChanged(JobEvent, frozen=True, kw_only=True):
    """The job has this priority from now on, also while it runs."""

    actor: str
    note: str = ""
    priority: int


class JobLimitChanged(JobEvent, frozen=True, kw_only=True):
    """The job may run this long in all, whatever it asked for; None: as long as it likes."""

    actor: str
    note: str = ""
    time_limit_seconds: int | None


# ---- about the cluster ----


class QueueChanged(Event, frozen=True, kw_only=True):
    """The whole queue of a tenant as it shall be. `stopped`: nothing of it is placed; what runs goes on.

    `guaranteed` is what it gets back from those who borrowed it, `ceiling` what it never has more than (None: no such).
    """

    actor: str
    note: str = ""
    tenant: str
    weight: int = 1
    guaranteed: Resources | None = None
    ceiling: Resources | None = None
    stopped: bool = False


class NodeDrainRequested(Event, frozen=True, kw_only=True):
    """Nothing new shall go to the node, and its jobs shall leave gracefully, the protected ones by `deadline_ns`."""

    actor: str
    note: str = ""
    node: str
    deadline_ns: int


class NodeResumeRequested(Event, frozen=True, kw_only=True):
    """The node takes jobs again: neither drained nor cordoned, and what it was blamed for is forgotten."""

    actor: str
    note: str = ""
    node: str


class NodeForgetRequested(Event, frozen=True, kw_only=True):
    """The lost node will not come back: nothing shall be kept of it any more, neither what was asked of it."""

    actor: str
    note: str = ""
    node: str


class MaintenancePlanned(Event, frozen=True, kw_only=True):
    """From `start_ns` until `end_ns` nothing shall run on the nodes: a drain known before. The same name replans it."""

    actor: str
    note: str = ""
    name: str
    nodes: tuple[str, ...]
    start_ns: int
    end_ns: int


class MaintenanceCancelled(Event, frozen=True, kw_only=True):
    """The maintenance window of this name will not be, or is over before its end."""

    actor: str
    note: str = ""
    name: str
