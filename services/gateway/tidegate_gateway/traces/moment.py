"""One event at work on one job's trace: begins spans, ends them, and keeps to the trace's bounds."""

from __future__ import annotations

import msgspec
from tidegate_events import trace
from tidegate_events.events import Quota, Reason

from tidegate_gateway.traces.span import (
    Attributes,
    Fault,
    Kind,
    Span,
    Status,
    Value,
    bounded_ns,
    clean,
    cleaned,
    derived_id,
    pass_link,
    root_id,
)
from tidegate_gateway.traces.state import SPANS_PER_TRACE_MAX, AttemptTrace, JobTrace, Open

REASONS_MAX = 16
END = "end"


class Output(msgspec.Struct):
    """The spans of one frame, and whether any of them will link to the scheduling pass that the frame begins with."""

    seq: int
    pass_id: str = ""
    linked: bool = False
    spans: list[Span] = []


class Ending(msgspec.Struct, frozen=True):
    """How a span ended; `fault` says whose a failure is."""

    status: Status = "unset"
    message: str = ""
    fault: Fault | None = None


PLAIN = Ending()
OK = Ending("ok")


class Moment(msgspec.Struct, frozen=True):
    """An event that counts, the job it is about, and where its spans go. `instance` is that of the event's writer."""

    output: Output
    job: JobTrace
    event_id: str
    event_at_ns: int
    instance: str

    @property
    def at_ns(self) -> int:
        """Return the event's time; no clock of another machine puts it before the submission."""
        return max(bounded_ns(self.event_at_ns), self.job.submitted_ns)

    def begin(
        self,
        name: str,
        service: str,
        *,
        parent_id: str | None = None,
        role: str | None = None,
        rank: int | None = None,
        instance: str | None = None,
        start_ns: int | None = None,
        attributes: Attributes | None = None,
        by_pass: bool = False,
    ) -> Open:
        """Return the span that begins now; by default a child of the root, whose role is its name.

        It never begins before its parent does: clocks of different machines differ a little.
        """
        parent_id = root_id(self.job.job) if parent_id is None else parent_id
        attempt = self.job.attempt
        under_attempt = attempt is not None and parent_id == attempt.marker_id
        earliest_ns = attempt.placed_ns if attempt is not None and under_attempt else self.job.submitted_ns
        return Open(
            name=clean(name),
            id=derived_id(self.event_id, role or name, rank),
            parent_id=parent_id,
            service=service,
            instance=self.instance if instance is None else instance,
            start_ns=max(earliest_ns, self.at_ns if start_ns is None else start_ns),
            attributes={**({} if rank is None else {"tidegate.rank": rank}), **(attributes or {})},
            passes=self.passes(by_pass),
        )

    def passes(self, by_pass: bool = True) -> tuple[str, ...]:
        """Return the scheduling pass that this event was decided in, and see to it that the pass gets its span."""
        if not by_pass or not self.output.pass_id:
            return ()
        self.output.linked = True
        return (self.output.pass_id,)

    def finish(
        self,
        begun: Open,
        ending: Ending = PLAIN,
        *,
        end_ns: int | None = None,
        attributes: Attributes | None = None,
        kind: Kind = "internal",
    ) -> None:
        """Emit the span, which ends now unless `end_ns` says otherwise; over the trace's bound it is only counted."""
        job = self.job
        if job.spans >= SPANS_PER_TRACE_MAX and begun.name != END:
            job.left_out += 1
            return
        job.spans += 1
        end_ns = max(begun.start_ns, self.at_ns if end_ns is None else end_ns)
        job.latest_ns = max(job.latest_ns, end_ns)
        fault: Attributes = {"tidegate.fault": ending.fault} if ending.fault else {}
        about: Attributes = {"tidegate.tenant": job.tenant, "tidegate.job": job.job}
        self.output.spans.append(
            Span(
                seq=self.output.seq,
                ordinal=len(self.output.spans),
                trace_id=trace.trace_id(job.job),
                span_id=begun.id,
                parent_id=begun.parent_id,
                name=begun.name,
                service=begun.service,
                instance=begun.instance,
                kind=kind,
                start_ns=begun.start_ns,
                end_ns=end_ns,
                status=ending.status,
                message=clean(ending.message),
                attributes=cleaned({**about, **begun.attributes, **(attributes or {}), **fault}),
                links=tuple(pass_link(event_id) for event_id in dict.fromkeys(begun.passes)),
                tenant=clean(job.tenant),
                job=clean(job.job),
            )
        )


def of_attempt(attempt: AttemptTrace, **more: Value) -> Attributes:
    """Return the attributes of what happens in an attempt."""
    return {"tidegate.attempt": attempt.number, **{f"tidegate.{name}": value for name, value in more.items()}}


def reasons(found: tuple[Reason, ...], *, of_end: bool = False) -> Attributes:
    """Return a decision's reasons as one attribute, nothing where there are none; `of_end` where they ended a span."""
    name = "tidegate.end_reasons" if of_end else "tidegate.reasons"
    return {name: tuple(reason_text(each) for each in found[:REASONS_MAX])} if found else {}


def reason_text(reason: Reason) -> str:
    """Return a reason in one line: its code, what it says, and the numbers behind it."""
    detail = f": {reason.detail}" if reason.detail else ""
    numbers = ", ".join(f"{name} {value}" for name, value in reason.numbers.items())
    return f"{reason.code}{detail}" + (f" ({numbers})" if numbers else "")


def quota_texts(quotas: tuple[Quota, ...]) -> tuple[str, ...]:
    """Return limits per replica, one text for each component."""
    return tuple(f"{quota.component} cpu_millis={quota.cpu_millis} memory_mib={quota.memory_mib}" for quota in quotas)
