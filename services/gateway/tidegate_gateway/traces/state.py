"""What the deriver remembers of a job between events: plain data, stored with the spans, so that a restart goes on."""

from __future__ import annotations

import msgspec

from tidegate_gateway.traces.span import Attributes

PHASE_SPANS_PER_ATTEMPT_MAX = 200
RESIZE_SPANS_PER_ATTEMPT_MAX = 100
SAVE_SPANS_PER_ATTEMPT_MAX = 100
"""What repeats without end is shown so often per attempt, all ranks together; the rest is summed up in one span."""
ROUTINE_SPANS_PER_TRACE_MAX = 2_000
"""The same over all attempts, so that a job that is preempted for ever stays quick to open."""
SPANS_PER_TRACE_MAX = 10_000
"""Spans of any kind; those beyond are counted on the end span."""
UNVERIFIED_MAX = 32
"""Saved checkpoints of a job whose verification is still awaited; the oldest is given up."""
PHASE_NAMES_MAX = 32
"""Names of phases that are summed up apart; those beyond share one."""
OTHER_PHASES = "other"


class Open(msgspec.Struct, omit_defaults=True):
    """A span that began and has not ended; `passes` are the scheduling passes that it will link to."""

    name: str
    id: str
    parent_id: str
    service: str
    instance: str
    start_ns: int
    attributes: Attributes = {}
    passes: tuple[str, ...] = ()


class Total(msgspec.Struct):
    """How often something was, and how long altogether."""

    count: int = 0
    duration_ns: int = 0


class LeftOut(msgspec.Struct):
    """What a cap kept from having spans of its own: summed up by name, from the first beginning to the last end."""

    id: str
    start_ns: int
    end_ns: int
    totals: dict[str, Total] = {}

    def add(self, name: str, start_ns: int, end_ns: int) -> None:
        """Sum one more up."""
        if name not in self.totals and len(self.totals) >= PHASE_NAMES_MAX:
            name = OTHER_PHASES
        total = self.totals.setdefault(name, Total())
        total.count += 1
        total.duration_ns += end_ns - start_ns
        self.end_ns = max(self.end_ns, end_ns)


class Current(msgspec.Struct, omit_defaults=True):
    """The phase or the resize that a member is in: to become a span (`shown`) or to be summed up."""

    name: str
    event_id: str
    start_ns: int
    shown: Open | None = None


class MemberTrace(msgspec.Struct, omit_defaults=True):
    """One member of the attempt, until it is gone."""

    rank: int
    node: str
    sandbox: Open
    started: bool = False
    restore: Open | None = None
    phase: Current | None = None
    phases: LeftOut | None = None
    resize: Current | None = None
    resizes: LeftOut | None = None


class AttemptTrace(msgspec.Struct, omit_defaults=True):
    """The current attempt: its marker is the parent of all that happens in it. `members` are those not yet gone."""

    number: int
    marker_id: str
    placed_ns: int
    members: list[MemberTrace]
    starting: Open | None = None
    leaving: Open | None = None
    slow: Open | None = None
    resume_step: int | None = None
    saves: LeftOut | None = None
    phase_spans: int = 0
    resize_spans: int = 0
    save_spans: int = 0

    def member(self, rank: int) -> MemberTrace | None:
        """Return the member that is still there under this rank."""
        return next((member for member in self.members if member.rank == rank), None)


class Unverified(msgspec.Struct):
    """A saved checkpoint whose verdict is awaited, and under which span the verdict will stand."""

    checkpoint: str
    parent_id: str
    attempt: int
    step: int
    saved_ns: int


class JobTrace(msgspec.Struct, omit_defaults=True):
    """One job's trace so far: `latest_ns` is the latest end of a span, `ended_seq` the frame in which the job ended."""

    job: str
    tenant: str
    submitted_ns: int
    latest_ns: int
    waiting: Open | None = None
    cancel: Open | None = None
    attempt: AttemptTrace | None = None
    unverified: list[Unverified] = []
    preemptions: int = 0
    spans: int = 0
    routine_spans: int = 0
    left_out: int = 0
    ended_seq: int = 0


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(JobTrace)


def encode(trace: JobTrace) -> bytes:
    """Return the stored form."""
    return _encoder.encode(trace)


def decode(data: bytes | str) -> JobTrace:
    """Return what `encode` was given; raises msgspec.MsgspecError for anything else."""
    return _decoder.decode(data)
