"""What every event carries, whatever it says: the fields that all kinds, those of a job, or all decisions have."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tidegate_events.records import Reason

FirstVersion = Annotated[int, msgspec.Meta(ge=1, le=1)]
"""The version of every event that was never changed; a changed one has its own field `v`, without a default."""


class Event(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, tag_field="kind", tag=True):
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
