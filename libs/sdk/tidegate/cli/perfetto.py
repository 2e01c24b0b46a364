"""Turns a trace into the Trace Event format, which https://ui.perfetto.dev and chrome://tracing open.

Format: "Trace Event Format" of Chromium (complete events `X`, instants `i`, names by metadata events `M`); times in
microseconds. On one track slices must nest, and spans of a distributed trace need not: so each group of spans gets as
many tracks as it has spans at once.
"""

from __future__ import annotations

from typing import Any

from tidegate.cli.spans import Span

Event = dict[str, Any]

NS_PER_US = 1_000
PID = 1
_GROUPS = {
    "image": "sandbox",
    "sandbox": "sandbox",
    "restore": "sandbox",
    "phases": "phases, summed up",
    "resize": "resizes",
    "resizes": "resizes",
    "save": "checkpoints",
    "saves": "checkpoints",
    "verify": "checkpoints",
    "preempt": "leaving",
    "stop": "leaving",
    "cancel": "leaving",
    "slow": "step rate",
}
_SCHEDULING = "scheduling"
_PHASES = "phases"
_ORDER = (_SCHEDULING, "leaving", "sandbox", _PHASES, "phases, summed up", "resizes", "checkpoints", "step rate")


def convert(spans: list[Span], name: str) -> dict[str, Any]:
    """Return the document; `name` is the process's, under which all tracks of the job stand."""
    origin_ns = spans[0].start_ns if spans else 0
    events: list[Event] = [_named("process_name", 0, name)]
    for tid, (title, found) in enumerate(_tracks(spans), start=1):
        events.append(_named("thread_name", tid, title))
        events.append({"ph": "M", "name": "thread_sort_index", "pid": PID, "tid": tid, "args": {"sort_index": tid}})
        events += [_event(span, tid, origin_ns) for span in found]
    began = {"began_unix_ns": str(origin_ns)}
    return {"displayTimeUnit": "ms", "otherData": {**began, "spans": len(spans)}, "traceEvents": events}


def _tracks(spans: list[Span]) -> list[tuple[str, list[Span]]]:
    """Return the tracks from top to bottom, each with its title and with spans that follow each other."""
    groups: dict[tuple[int, int], list[list[Span]]] = {}
    for span in spans:
        # What belongs to the whole job stands above its members.
        rank = int(span.attributes.get("rank", -1))
        tracks = groups.setdefault((rank, _ORDER.index(_group(span))), [])
        free = next((track for track in tracks if track[-1].end_ns <= span.start_ns), None)
        if free is None:
            tracks.append([span])
        else:
            free.append(span)
    return [
        (_ORDER[group] if rank < 0 else f"rank {rank}: {_ORDER[group]}", track)
        for (rank, group), tracks in sorted(groups.items())
        for track in tracks
    ]


def _group(span: Span) -> str:
    if span.name.startswith("phase "):
        return _PHASES
    return _GROUPS.get(span.name, _SCHEDULING)


def _event(span: Span, tid: int, origin_ns: int) -> Event:
    arguments = {**span.attributes, "service": span.service, "span_id": span.id}
    if span.failed:
        arguments["error"] = span.message or "failed"
    event: Event = {
        "name": span.name,
        "cat": "error" if span.failed else span.service,
        "pid": PID,
        "tid": tid,
        "ts": (span.start_ns - origin_ns) / NS_PER_US,
        "args": arguments,
    }
    if span.duration_ns:
        return {**event, "ph": "X", "dur": span.duration_ns / NS_PER_US}
    return {**event, "ph": "i", "s": "t"}


def _named(what: str, tid: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": PID, "tid": tid, "args": {"name": name}}
