"""What a job may say on its socket, as strict Structs: anything else is refused before a handler sees it.

The field names and limits are those of docs/reference/sdk-protocol.md. Nothing in here names a job or a rank:
whose words they are follows from the socket they came through.
"""

from typing import Annotated, Any, Literal

import msgspec
from tidegate import protocol

RANKS_MAX = 4096
"""Ranks of one node."""

Seq = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Step = Annotated[int, msgspec.Meta(ge=0, le=999_999_999_999)]
Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
ClientId = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
Token = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")]
Text = Annotated[str, msgspec.Meta(max_length=protocol.TEXT_CHARS_MAX)]
ShortText = Annotated[str, msgspec.Meta(max_length=protocol.NAME_CHARS_MAX)]
PhaseName = Annotated[str, msgspec.Meta(pattern=protocol.PHASE_NAME.pattern)]
MetricName = Annotated[str, msgspec.Meta(pattern=protocol.METRIC_NAME.pattern)]
EventKind = Annotated[str, msgspec.Meta(pattern=protocol.EVENT_KIND.pattern)]
GroupName = Annotated[str, msgspec.Meta(pattern=protocol.STOP_GROUP.pattern)]
CheckpointName = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{12}-[0-9]{1,9}-[0-9a-z]{8}\Z")]
SaveName = Annotated[str, msgspec.Meta(pattern=protocol.SAVE.pattern)]
LayerName = Literal["model", "optimizer", "experience", "state"]
NotFinite = Literal["nan", "inf", "-inf"]


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", kw_only=True):
    """Base of all messages; `kind` is the tag."""


class Control(Message, frozen=True, kw_only=True):
    """A message that is kept by the job until acknowledged; `seq` counts from 1 within one client."""

    seq: Seq
    at_ns: Nanoseconds


class Hello(Message, frozen=True, tag="hello"):
    """The first message of a connection. `first_seq` is the oldest one the client may still send."""

    protocol: Annotated[list[Count], msgspec.Meta(min_length=2, max_length=2)]
    client: ClientId
    component: Token
    replica: Count
    pid: Count
    first_seq: Seq
    stop_group: GroupName
    sdk: ShortText
    python: ShortText
    stop_at: Count | None = None


class Phase(Control, frozen=True, tag="phase"):
    """The phase the process is in now (null: in none); `merged` earlier changes were folded into this one."""

    phase: PhaseName | None
    step: Step | None = None
    merged: Count = 0


class Ask(Control, frozen=True, tag="ask"):
    """The process waits to enter this phase, until it is `granted` (null: it waits no longer)."""

    phase: PhaseName | None
    step: Step | None = None


class Publish(Control, frozen=True, tag="publish"):
    """One event of the user's own."""

    event: EventKind
    payload: dict[str, Any]


class SavedLayer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One layer of a saved checkpoint; `sha256` is that of its manifest."""

    name: LayerName
    bytes: Count
    sha256: Digest


class Saved(Control, frozen=True, tag="saved"):
    """A checkpoint is durable in the hot directory, its root under the name `directory`; `id` is the root's."""

    id: Digest
    directory: CheckpointName
    step: Step
    layers: Annotated[list[SavedLayer], msgspec.Meta(min_length=1, max_length=4)]
    copy_ms: Count
    write_ms: Count


class SaveFailed(Control, frozen=True, tag="save_failed"):
    """A save did not become durable; nothing names it."""

    step: Step
    error: Text


class PartSaved(Control, frozen=True, tag="part_saved"):
    """The part of `ranks` of a save of the gang is durable in the hot directory, under the name `directory`."""

    save: SaveName
    id: Digest
    directory: CheckpointName
    step: Step
    ranks: Annotated[list[Count], msgspec.Meta(min_length=1, max_length=RANKS_MAX)]


class PartFailed(Control, frozen=True, tag="part_failed"):
    """This node has no part in a save of the gang, because of `rank`."""

    save: SaveName
    step: Step
    rank: Count
    error: Text


class NotFreed(Control, frozen=True, tag="not_freed"):
    """The devices of this phase are not handed back: the job's own hook failed, or has not returned in time."""

    phase: PhaseName
    error: Text


class Restored(Control, frozen=True, tag="restored"):
    """The job continues from this checkpoint; `skipped` newer ones were refused (`why` says how)."""

    id: Digest
    directory: CheckpointName
    step: Step
    skipped: Count = 0
    why: Text = ""


class Suspended(Control, frozen=True, tag="suspended"):
    """The process acknowledges its suspension; it exits with code 75 next."""

    checkpoint: Digest | None = None
    step: Step | None = None


class Finished(Control, frozen=True, tag="finished"):
    """The process says that its work is complete, with a small result."""

    result: dict[ShortText, str | int | float | bool | None]
    step: Step | None = None


class Report(Message, frozen=True, tag="report"):
    """The newest metrics; `merged` calls were folded into it, `dropped` reports were lost before it."""

    at_ns: Nanoseconds
    metrics: Annotated[dict[MetricName, float | NotFinite], msgspec.Meta(max_length=protocol.METRICS_MAX)]
    step: Step | None = None
    progress: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    merged: Count = 0
    dropped: Count = 0

    def values(self) -> dict[str, float]:
        """Return the metrics as floats, not-finite ones included."""
        return {name: float(value) for name, value in self.metrics.items()}


class StopCount(Message, frozen=True, tag="stop_count"):
    """The answer to a stop: calls of should_stop() made so far, and a decision known from an earlier agent."""

    vote: Token
    calls: Count
    stop_at: Count | None = None


class AwaitJoin(Message, frozen=True, tag="await_join"):
    """The process waits for `joined`: what becomes of a save of which it stored this part. Said on each connection."""

    save: SaveName
    part: Digest


class Bye(Message, frozen=True, tag="bye"):
    """The client leaves for good and takes no further part in a stop vote."""


Incoming = (
    Hello
    | Phase
    | Ask
    | Publish
    | Saved
    | SaveFailed
    | PartSaved
    | PartFailed
    | NotFreed
    | Restored
    | Suspended
    | Finished
    | Report
    | StopCount
    | AwaitJoin
    | Bye
)
