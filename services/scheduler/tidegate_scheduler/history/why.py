"""Why a job waits, or ran where it ran, was resized, was asked to leave: from what was recorded, and decided again.

Recorded reasons say what was decided. What they leave out (every node's verdict, who was in front, who shares the CPU)
is worked out on the state that the decision was taken on, by the policy that took it.
"""

from __future__ import annotations

import msgspec
from tidegate.cli import text
from tidegate_events import events as e

from tidegate_scheduler.explain import explain, queue
from tidegate_scheduler.history.cluster import Waiting, reasons_now, waiting
from tidegate_scheduler.history.errors import NotInHistoryError
from tidegate_scheduler.history.listing import Document, frame_at, story
from tidegate_scheduler.history.moment import Moment
from tidegate_scheduler.history.point import Point, Told, reach, reach_known
from tidegate_scheduler.history.shares import Share, shares, triggers
from tidegate_scheduler.history.source import Source
from tidegate_scheduler.history.verdicts import verdicts
from tidegate_scheduler.leasing import waits_for_phase
from tidegate_scheduler.policy.outlook import Verdict
from tidegate_scheduler.state import State

IN_FRONT_MAX = 20
_ENDS = frozenset({"JobCompleted", "JobFailed", "JobCancelled", "JobRejected"})


class Waits(msgspec.Struct, frozen=True):
    """The job's place in line at the point, who was in front (the nearest of them), and what each node meant for it."""

    place: Waiting
    in_line: int
    in_front: tuple[Waiting, ...]
    nodes: tuple[Verdict, ...]


class Placing(msgspec.Struct, frozen=True):
    """The decision that placed the newest attempt, and what each node meant for the job when its turn came."""

    decision: Document
    at_seq: int
    nodes: tuple[Verdict, ...]


class Leaving(msgspec.Struct, frozen=True):
    """The newest request to leave, and, where it was for another job, what each node meant for that one."""

    decision: Document
    at_seq: int
    for_job: str
    nodes: tuple[Verdict, ...]


class Resizing(msgspec.Struct, frozen=True):
    """The newest change of limits, and what happened on the node that moved CPU."""

    decision: Document
    triggers: tuple[Document, ...]


class Why(msgspec.Struct, frozen=True):
    """The whole answer; what does not apply is None or empty. `answer` is it in one sentence."""

    job: str
    seq: int
    at_ns: int
    state: str
    answer: str
    waits: Waits | None
    placed: Placing | None
    leaving: Leaving | None
    resized: Resizing | None
    ended: Document | None
    shares: tuple[Share, ...]
    story: tuple[Document, ...]


async def why(source: Source, job: str, moment: Moment, told: Told) -> Why:
    """Return why `job` was as it was at `moment`. Raises NotInHistoryError for a job that nobody knew then."""
    point = await reach_known(source, moment, told)
    state = point.state
    told(f"Looking for what happened to {job}")
    events = await story(source, job, state.seq)
    if job not in state.jobs and job not in state.finished:
        known = "was not submitted yet" if events else "is not known"
        raise NotInHistoryError(
            f"At sequence {state.seq} job {job} {known}.", "Find jobs with `tidegate history ls --kind JobSubmitted`."
        )
    live = state.jobs.get(job)
    nodes = {member.node for member in live.members if member.active} if live is not None else set()
    found = Why(
        job=job,
        seq=state.seq,
        at_ns=point.at_ns,
        state=live.stage if live is not None else state.finished[job].state,
        answer="",
        waits=_waits(point, job),
        placed=await _placed(
            source, job, live.attempt if live is not None else state.finished[job].attempt, events, told
        ),
        leaving=await _leaving(source, events, told),
        resized=await _resized(source, state, events, nodes),
        ended=next((event for event in reversed(events) if _ends(event)), None) if live is None else None,
        shares=shares(state, nodes),
        story=tuple(events),
    )
    return msgspec.structs.replace(found, answer=_answer(state, found))


def _newest(events: list[Document], kind: str, **fields: object) -> Document | None:
    for event in reversed(events):
        if event["kind"] == kind and not event["void"] and all(event[name] == value for name, value in fields.items()):
            return event
    return None


def _ends(event: Document) -> bool:
    return event["kind"] in _ENDS and not event["void"]


def _waits(point: Point, job: str) -> Waits | None:
    found = point.state.jobs.get(job)
    if found is None or not found.waiting:
        return None
    reasons = reasons_now(point.state, point.at_ns)
    place = waiting(point.state, explain(point.state, reasons, job, point.at_ns))
    line = queue(point.state, reasons, point.at_ns)
    in_front = [waiting(point.state, one) for one in line.queue if one.position < place.position]
    return Waits(place, line.total, tuple(in_front[-IN_FRONT_MAX:]), verdicts(point.state, found, point.at_ns))


async def _decided_on(source: Source, decision: Document, told: Told) -> tuple[Point, int]:
    """Return the point that the pass of a decision was decided on, at the time of the pass, and its sequence."""
    head = (await frame_at(source, decision["seq"])).frame.events[0]
    at_seq = head.at_seq if isinstance(head, e.DecisionPass) else decision["seq"] - 1
    at_seq = max(at_seq, source.first - 1)
    point = await reach(source, Moment(seq=at_seq), told)
    return Point(point.state, head.at_ns), at_seq


async def _placed(source: Source, job: str, attempt: int, events: list[Document], told: Told) -> Placing | None:
    # The newest attempt's; one that came too late to count names an attempt that never was.
    decision = _newest(events, "JobPlaced", attempt=attempt)
    if decision is None:
        return None
    point, at_seq = await _decided_on(source, decision, told)
    waiting = point.state.jobs.get(job)
    nodes = verdicts(point.state, waiting, point.at_ns) if waiting is not None and waiting.waiting else ()
    return Placing(decision, at_seq, nodes)


async def _leaving(source: Source, events: list[Document], told: Told) -> Leaving | None:
    decision = _newest(events, "PreemptRequested")
    if decision is None:
        return None
    for_job = str(decision["data"].get("for_job", ""))
    point, at_seq = await _decided_on(source, decision, told)
    other = point.state.jobs.get(for_job)
    nodes = verdicts(point.state, other, point.at_ns) if other is not None and other.waiting else ()
    return Leaving(decision, at_seq, for_job, nodes)


async def _resized(source: Source, state: State, events: list[Document], nodes: set[str]) -> Resizing | None:
    decision = _newest(events, "QuotaChanged")
    if decision is None or not nodes:
        return None
    recorded = await frame_at(source, decision["seq"])
    return Resizing(decision, await triggers(source, state, recorded, nodes))


def _answer(state: State, found: Why) -> str:
    """Say it in one sentence."""
    if found.ended is not None:
        return f"it ended: {found.ended['words']} ({found.ended['seq']}.{found.ended['index']})"
    job = state.jobs.get(found.job)
    if job is None:
        return f"it ended: {found.state}; this history begins after that"
    if job.waiting:
        assert found.waits is not None, "who waits is told so"
        return _waiting_answer(found.waits)
    if job.stage == "preempting" and found.leaving is not None:
        return f"it is leaving: {found.leaving.decision['words']}"
    if job.stage == "stopping":
        return f"it is being stopped: {job.stop_reason}"
    where = ", ".join(sorted({member.node for member in job.members}))
    placed = found.placed
    because = text.reasons(placed.decision["reasons"]) if placed is not None else "placed before this history begins"
    if asked := waits_for_phase(state, job):
        because = text.reasons([msgspec.to_builtins(reason) for reason in asked])
    return f"it is {job.stage} on {where}: {because}"


def _waiting_answer(waits: Waits) -> str:
    why_so = text.reasons([msgspec.to_builtins(reason) for reason in waits.place.reasons])
    return f"it waits, number {waits.place.position} of {waits.in_line} in line: {why_so}"
