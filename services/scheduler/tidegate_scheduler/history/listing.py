"""Events one by one: as documents, newest first, by what they are about; and the causes that lead to one."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from tidegate.cli.wording import sentence
from tidegate_events import events as e
from tidegate_events.contract import may_say
from tidegate_events.journal.base import Recorded
from tidegate_events.subjects import DECISION, speaks_for

from tidegate_scheduler.history.errors import NotInHistoryError
from tidegate_scheduler.history.moment import Moment
from tidegate_scheduler.history.source import Source

Document = dict[str, Any]

FRAMES_PER_LOOK_BACK = 2000
CAUSES_MAX = 200
STORY_EVENTS_MAX = 20_000
_CAUSE = re.compile(r"(\d{1,15})\.(\d{1,6})")
_ENVELOPE = frozenset(e.JobEvent.__struct_fields__) | {"at_ns", "v", "reasons"}
_LIFTED = frozenset({"attempt", "rank", "node"})


def document(recorded: Recorded, index: int) -> Document:
    """Return an event with its place, its writer, and in words; `void` says why it never counted, where that is so."""
    event = recorded.frame.events[index]
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    shown: Document = {"seq": recorded.seq, "index": index, "at_ns": event.at_ns, "kind": type(event).__name__}
    for name in ("attempt", "rank", "node"):
        if name in fields:
            shown[name] = fields[name]
    shown["reasons"] = _plain(fields.get("reasons", ()))
    data = {name: value for name, value in fields.items() if name not in _ENVELOPE | _LIFTED}
    shown["data"] = {name: _plain(value) for name, value in data.items()}
    shown["tenant"] = fields.get("tenant", "")
    shown["words"] = sentence(shown)
    traceparent = str(fields.get("traceparent", ""))
    shown |= {
        "job": fields.get("job", ""),
        "trace_id": traceparent.split("-")[1] if traceparent.count("-") == 3 else "",
        "id": event.id,
        "cause": event.cause,
        "writer": _plain(recorded.frame.writer),
        "void": void(recorded, event),
    }
    return shown


def void(recorded: Recorded, event: e.Event) -> str:
    """Say why the event counts nowhere, whatever the state: it is said by somebody who may not; empty where it may."""
    writer = recorded.frame.writer
    if not speaks_for(recorded.subject, writer):
        return f"{writer.service} {writer.instance} does not speak on {recorded.subject}"
    if not may_say(writer, event):
        return f"{writer.service} {writer.instance} may not say this"
    return ""


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value)


class Wanted(msgspec.Struct, frozen=True):
    """Which events are wanted; what is empty bounds nothing."""

    kinds: frozenset[str] = frozenset()
    job: str = ""
    since: Moment = Moment()
    until: Moment = Moment()

    def takes(self, recorded: Recorded, event: e.Event) -> bool:
        """Say whether the event is one of them."""
        if self.kinds and type(event).__name__ not in self.kinds:
            return False
        if self.job and getattr(event, "job", "") != self.job and getattr(event, "for_job", "") != self.job:
            return False
        since, until = self.since, self.until
        if since.at_ns is not None and event.at_ns < since.at_ns:
            return False
        if until.at_ns is not None and event.at_ns > until.at_ns:
            return False
        return (since.seq or 0) <= recorded.seq and (until.seq is None or recorded.seq <= until.seq)

    def is_before(self, frames: list[Recorded]) -> bool:
        """Say whether all of these lie before what is wanted, by the scheduler's clock, which never goes back."""
        if self.since.seq is not None and frames and frames[0].seq <= self.since.seq:
            return True
        since_ns = self.since.at_ns
        times = [event.at_ns for r in frames if r.subject == DECISION for event in r.frame.events]
        return since_ns is not None and bool(times) and max(times) < since_ns


async def portions(source: Source, until: int) -> AsyncGenerator[list[Recorded], None]:
    """Yield history backwards from `until`, portion by portion; the frames of each are in order."""
    high = until
    while high >= source.first:
        low = max(source.first - 1, high - FRAMES_PER_LOOK_BACK)
        async with aclosing(source.read(low, high)) as frames:
            yield [recorded async for recorded in frames]
        high = low


async def newest(source: Source, wanted: Wanted, limit: int) -> list[Document]:
    """Return the newest `limit` of the wanted events, oldest of them first."""
    end = source.end if wanted.until.seq is None else min(source.end, wanted.until.seq)
    found: list[Document] = []
    async with aclosing(portions(source, end)) as back:
        async for frames in back:
            new = [
                document(recorded, index)
                for recorded in frames
                for index, event in enumerate(recorded.frame.events)
                if wanted.takes(recorded, event)
            ]
            found = [*new, *found][-limit:]
            if len(found) >= limit or wanted.is_before(frames):
                break
    return found


async def story(source: Source, job: str, until: int) -> list[Document]:
    """Return the events about `job` up to `until`, from its submission, or from where this history begins.

    Of more than STORY_EVENTS_MAX the newest.
    """
    found: list[Document] = []
    async with aclosing(portions(source, until)) as back:
        async for frames in back:
            new = [
                (event, document(recorded, index))
                for recorded in frames
                for index, event in enumerate(recorded.frame.events)
                if getattr(event, "job", "") == job
            ]
            found = [*(shown for _, shown in new), *found][-STORY_EVENTS_MAX:]
            if len(found) == STORY_EVENTS_MAX or any(isinstance(event, e.JobSubmitted) for event, _ in new):
                break
    return found


async def frame_at(source: Source, seq: int) -> Recorded:
    """Return the frame at `seq`. Raises NotInHistoryError."""
    if source.first <= seq <= source.end:
        async with aclosing(source.read(seq - 1, seq)) as frames:
            async for recorded in frames:
                return recorded
    raise NotInHistoryError(
        f"Sequence {seq} is not in this history: it begins with {source.first} and ends with {source.end}."
    )


async def causes(source: Source, event: e.Event) -> list[Document]:
    """Return the events that led to this one, its cause first, back to the root or to where this history begins."""
    chain: list[Document] = []
    while len(chain) < CAUSES_MAX and (place := _CAUSE.fullmatch(event.cause)) is not None:
        seq, index = int(place[1]), int(place[2])
        if not source.first <= seq <= source.end:
            break
        recorded = await frame_at(source, seq)
        if index >= len(recorded.frame.events):
            break  # who wrote the event named something that there is not
        chain.append(document(recorded, index))
        event = recorded.frame.events[index]
    return chain
