"""The contract table: for each kind of event who may write it, what it changes, and when it is void.

`docs/reference/events.md` is rendered from it (`python -m tidegate_events.contract`), and tests hold both together.
"""

from __future__ import annotations

import msgspec

from tidegate_events import events as e
from tidegate_events.frame import KINDS, VERSIONS, Writer


class Row(msgspec.Struct, frozen=True):
    """One kind of event."""

    kind: type[e.Event]
    writer: str
    effect: str
    carries: str
    void_when: str


_NEVER = "never"
_OTHER_INCARNATION = "the node has another incarnation"
_OTHER_ATTEMPT = "the job is at another attempt, or has ended"
_OTHER_REVISION = "the job's revision is another one"
_ENDED = "the job is unknown or has ended"
_UNKNOWN_NODE = "the node is unknown"

CONTRACT: tuple[Row, ...] = (
    Row(e.JobSubmitted, "gateway", "the job exists and waits", "job", "the job exists already"),
    Row(e.CancelRequested, "gateway", "the scheduler shall end the job", "job", _ENDED),
    Row(
        e.HoldRequested,
        "gateway",
        "the job is not placed; one that runs goes on, and is held when it waits again; older decisions are void",
        "job",
        _ENDED + ", or it is held",
    ),
    Row(e.ReleaseRequested, "gateway", "the job is no longer held", "job", _ENDED + ", or it is not held"),
    Row(
        e.SuspendRequested,
        "gateway",
        "the job shall leave gracefully and is held then (one that waits: at once); older decisions are void",
        "job",
        _ENDED + ", or it was asked for already",
    ),
    Row(
        e.ResumeRequested,
        "gateway",
        "the job is neither held nor asked to leave; older decisions are void",
        "job",
        _ENDED + ", or it is neither held nor asked to leave",
    ),
    Row(
        e.RequeueRequested,
        "gateway",
        "the job shall leave gracefully and wait for another attempt; older decisions are void",
        "job",
        _ENDED + ", or it waits, or it was asked for already",
    ),
    Row(e.JobPriorityChanged, "gateway", "the job has the priority from now on", "job", _ENDED),
    Row(e.JobLimitChanged, "gateway", "the job's time limit is this from now on", "job", _ENDED),
    Row(
        e.QueueChanged,
        "gateway",
        "the tenant's queue is as it says, as a whole",
        "tenant",
        "its weight is less than 1",
    ),
    Row(
        e.NodeDrainRequested,
        "gateway",
        "nothing new is placed on the node, and its jobs leave by the deadline; it outlives the agent's restart",
        "node",
        _UNKNOWN_NODE,
    ),
    Row(
        e.NodeResumeRequested,
        "gateway",
        "the node is neither drained nor cordoned, and its failures are forgotten",
        "node",
        _UNKNOWN_NODE,
    ),
    Row(
        e.NodeForgetRequested,
        "gateway",
        "nothing is kept of the node",
        "node",
        "the node is not lost",
    ),
    Row(
        e.MaintenancePlanned,
        "gateway",
        "nothing shall run on the nodes from its start until its end; one of the same name is replaced, and where "
        "there are too many those that ended first are dropped",
        "name",
        "it ends before it starts, names no node, or too many have not ended yet",
    ),
    Row(e.MaintenanceCancelled, "gateway", "the maintenance is off", "name", "there is none of this name"),
    Row(
        e.NodeJoined,
        "node",
        "the node offers its capacity; members it no longer holds count as lost",
        "node, incarnation",
        "a newer incarnation of the node is known",
    ),
    Row(
        e.ImageCached,
        "node",
        "the node has the image: jobs that need it fit there, and it is hinted there no more",
        "incarnation",
        _OTHER_INCARNATION,
    ),
    Row(
        e.ImageEvicted,
        "node",
        "the node has the image no more; it may get it again",
        "incarnation",
        _OTHER_INCARNATION,
    ),
    Row(
        e.ImageUnavailable,
        "node",
        "the image is not hinted there again until the node joins again",
        "incarnation",
        _OTHER_INCARNATION,
    ),
    Row(
        e.NodeImagesChanged,
        "node",
        "the node has these images and cannot get those: what earlier agents said instead of the three above",
        "incarnation",
        _OTHER_INCARNATION,
    ),
    Row(
        e.PlacementRejected,
        "node",
        "the member did not start; the node is excluded for the job",
        "attempt",
        _OTHER_ATTEMPT,
    ),
    Row(e.SandboxStarted, "node", "the member runs", "attempt", _OTHER_ATTEMPT),
    Row(e.SandboxExited, "node", "the member is gone and its room is free", "attempt", _OTHER_ATTEMPT),
    Row(e.PhaseChanged, "node", "the member is in the phase", "attempt", _OTHER_ATTEMPT),
    Row(
        e.PhaseRequested,
        "node",
        "the member waits until the phase is granted",
        "attempt",
        _OTHER_ATTEMPT + ", or the job's phases are told and not asked for",
    ),
    Row(
        e.ProgressReported,
        "node",
        "the job is that far",
        "attempt",
        _OTHER_ATTEMPT + ", it is not by rank 0, or not between 0 and 1000",
    ),
    Row(e.QuotaApplied, "node", "the observed limits are these", "attempt", _OTHER_ATTEMPT),
    Row(e.ShrinkRefused, "node", "the member holds these limits still", "attempt", _OTHER_ATTEMPT),
    Row(
        e.HandBackFailed,
        "node",
        "the recall of what the member was lent is over, and the job is asked to save and leave",
        "attempt",
        _OTHER_ATTEMPT + ", or nothing is recalled",
    ),
    Row(
        e.CheckpointSaved,
        "node, checkpoint",
        "the job can resume from the checkpoint",
        "attempt",
        "the job has ended, or it is older than the newest known",
    ),
    Row(
        e.CheckpointFailed,
        "node, checkpoint",
        "a checkpoint that did not verify is not resumed from",
        "attempt",
        "the job has ended",
    ),
    Row(
        e.CheckpointVerified,
        "checkpoint",
        "the checkpoint is known to be whole",
        "attempt",
        "the checkpoint is unknown",
    ),
    Row(
        e.CheckpointPartSaved,
        "node",
        "the node's part of the save waits to be promoted, and to be joined with those of the others",
        "attempt",
        "the save is decided, or the node told of another part of it",
    ),
    Row(
        e.CheckpointPartFailed,
        "node, checkpoint",
        "the save is to be vetoed",
        "attempt",
        "the save is decided",
    ),
    Row(
        e.CheckpointPartPromoted,
        "checkpoint",
        "the part may be named by a root in the tier",
        "attempt",
        "the save is decided, or the part is another one",
    ),
    Row(e.StepRateLow, "metrics", "the job is known to be slower than it declared", "attempt", _OTHER_ATTEMPT),
    Row(e.StepRateRecovered, "metrics", "the job is known to be fast enough again", "attempt", _OTHER_ATTEMPT),
    Row(
        e.GenerationOpened,
        "keeper",
        "the journal goes on in another stream; what lay before is sealed, and the state after it was saved",
        "generation",
        "a later generation is known",
    ),
    Row(e.LeaderElected, "scheduler", "the epoch leads", "epoch", "a higher epoch leads"),
    Row(e.PolicyChanged, "scheduler", "decisions follow the policy", "policy version", _NEVER),
    Row(
        e.DecisionPass,
        "scheduler",
        "the scheduler's time moves on",
        "epoch, at_seq",
        "its epoch does not lead",
    ),
    Row(
        e.NodeUnreachable,
        "scheduler",
        "nothing new is placed on the node",
        "incarnation",
        "the node has another incarnation",
    ),
    Row(
        e.NodeReachable,
        "scheduler",
        "the node takes jobs again",
        "incarnation",
        "the node has another incarnation",
    ),
    Row(
        e.NodeLost,
        "scheduler",
        "the node's members count as lost; the node is gone until it joins again",
        "incarnation",
        "the node has another incarnation",
    ),
    Row(
        e.NodeCordoned,
        "scheduler",
        "nothing new is placed on the node until an operator resumes it; it outlives the agent's restart",
        "incarnation",
        "the node has another incarnation",
    ),
    Row(
        e.NodeForgotten,
        "scheduler",
        "nothing is kept of the node",
        "incarnation",
        "the node has another incarnation, or is not lost",
    ),
    Row(
        e.ImagePrefetchHinted,
        "scheduler",
        "the image is not hinted for the node again soon",
        "node",
        _UNKNOWN_NODE,
    ),
    Row(e.JobRejected, "scheduler", "the job ended before it began", "revision", _OTHER_REVISION),
    Row(
        e.JobPlaced,
        "scheduler",
        "a new attempt holds its room",
        "revision, attempt, incarnation of each node",
        _OTHER_REVISION + ", or a node has another incarnation or is away",
    ),
    Row(e.JobStarted, "scheduler", "the attempt runs", "revision, attempt", _OTHER_REVISION),
    Row(
        e.JobResumed,
        "scheduler",
        "the attempt runs on from a checkpoint",
        "revision, attempt",
        _OTHER_REVISION,
    ),
    Row(
        e.QuotaChanged,
        "scheduler",
        "the member's limits shall be these",
        "revision, attempt",
        "the job is at another attempt, or the member is gone",
    ),
    Row(
        e.HandBackRequested,
        "scheduler",
        "the member shall leave its leased phase",
        "revision, attempt",
        "the job is at another attempt, or the member is gone",
    ),
    Row(e.RoomReserved, "scheduler", "room on the nodes belongs to the job", "revision", _OTHER_REVISION),
    Row(
        e.PreemptRequested,
        "scheduler",
        "the attempt shall save and leave",
        "revision, attempt",
        _OTHER_REVISION,
    ),
    Row(e.StopRequested, "scheduler", "the attempt shall end", "revision, attempt", _OTHER_REVISION),
    Row(e.JobSuspended, "scheduler", "the job waits to resume", "revision, attempt", _OTHER_REVISION),
    Row(e.JobRequeued, "scheduler", "the job waits for another attempt", "revision, attempt", _OTHER_REVISION),
    Row(e.JobCompleted, "scheduler", "the job ended well", "revision, attempt", _OTHER_REVISION),
    Row(e.JobFailed, "scheduler", "the job ended badly", "revision, attempt", _OTHER_REVISION),
    Row(e.JobCancelled, "scheduler", "the job ended on request", "revision, attempt", _OTHER_REVISION),
)

WRITERS: dict[str, frozenset[str]] = {
    row.kind.__name__: frozenset(part.strip() for part in row.writer.split(",")) for row in CONTRACT
}


def may_write(service: str, kind: str) -> bool:
    """Say whether `service` may write events of `kind`."""
    return service in WRITERS.get(kind, frozenset())


_OF_A_NODE = frozenset(row.kind for row in CONTRACT if "node" in row.kind.__struct_fields__)
_SAID_BY: dict[str, frozenset[type[e.Event]]] = {
    service: frozenset(row.kind for row in CONTRACT if service in WRITERS[row.kind.__name__])
    for service in frozenset[str]().union(*WRITERS.values())
}


def may_say(writer: Writer, event: e.Event) -> bool:
    """Say whether `writer` may write `event`; an agent's event must also be about its own node.

    The bus guards subjects, not what frames claim, so every fold asks this and voids what it refuses.
    """
    kind = type(event)
    if kind not in _SAID_BY.get(writer.service, ()):
        return False
    return writer.service != "node" or kind not in _OF_A_NODE or event.node == writer.instance  # type: ignore[attr-defined]


def render() -> str:
    """Return the table as the Markdown page of the reference."""
    lines = [
        "# Events",
        "",
        "Every kind of event in the journal. Rendered from `libs/events/tidegate_events/contract.py`; edit it there.",
        "",
        "| kind | v | writer | effect | carries | void when | fields |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in CONTRACT:
        own = [f for f in row.kind.__struct_fields__ if f not in e.Event.__struct_fields__]
        fields = ", ".join(f"`{name}`" for name in own)
        kind, version = row.kind.__name__, VERSIONS[row.kind.__name__]
        lines.append(
            f"| `{kind}` | {version} | {row.writer} | {row.effect} | {row.carries} | {row.void_when} | {fields} |"
        )
    missing = set(KINDS) - set(WRITERS)
    if missing:
        raise LookupError(f"kinds without a row in the contract table: {sorted(missing)}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(render(), end="")
