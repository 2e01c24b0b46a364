"""Says in words what people asked for: of jobs, nodes, queues, and when nodes shall be empty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegate.cli import amounts, moments, text

Entry = dict[str, Any]
Words = Callable[[Entry, dict[str, Any]], str]


def _by(what: str) -> Words:
    return lambda entry, data: f"{what} by {_who(data)}"


def _who(data: dict[str, Any]) -> str:
    """Return who asked, and why where that was told."""
    why = f": {data['note']}" if data.get("note") else ""
    return f"{data.get('actor') or 'somebody'}{why}"


def _priority(entry: Entry, data: dict[str, Any]) -> str:
    return f"priority {data.get('priority')} set by {_who(data)}"


def _limit(entry: Entry, data: dict[str, Any]) -> str:
    seconds = data.get("time_limit_seconds")
    limit = "no time limit" if seconds is None else f"a time limit of {text.span(seconds)}"
    return f"{limit} set by {_who(data)}"


def _queue(entry: Entry, data: dict[str, Any]) -> str:
    parts = [f"weight {data.get('weight', 1)}"]
    parts += [f"guaranteed {amounts.shown(data['guaranteed'])}"] if data.get("guaranteed") else []
    parts += [f"at most {amounts.shown(data['ceiling'])}"] if data.get("ceiling") else []
    parts += ["stopped"] if data.get("stopped") else []
    return f"queue {data.get('tenant') or entry.get('tenant')} ({', '.join(parts)}) set by {_who(data)}"


def _drain(entry: Entry, data: dict[str, Any]) -> str:
    deadline_ns = int(data.get("deadline_ns") or entry["at_ns"])
    left = text.since(entry["at_ns"], deadline_ns)
    return f"drain of {entry.get('node')}, its jobs leave within {left}, asked by {_who(data)}"


def _node_resume(entry: Entry, data: dict[str, Any]) -> str:
    return f"{entry.get('node')} shall take jobs again, asked by {_who(data)}"


def _node_forget(entry: Entry, data: dict[str, Any]) -> str:
    return f"nothing shall be kept of {entry.get('node')}, asked by {_who(data)}"


def _planned(entry: Entry, data: dict[str, Any]) -> str:
    when = f"{moments.date_and_time(data.get('start_ns'))} to {moments.date_and_time(data.get('end_ns'))}"
    return f"maintenance {data.get('name')} on {', '.join(data.get('nodes') or [])}, {when}, planned by {_who(data)}"


def _cancelled(entry: Entry, data: dict[str, Any]) -> str:
    return f"maintenance {data.get('name')} cancelled by {_who(data)}"


WORDS: dict[str, Words] = {
    "HoldRequested": _by("hold asked"),
    "ReleaseRequested": _by("release asked"),
    "SuspendRequested": _by("suspension asked"),
    "ResumeRequested": _by("resumption asked"),
    "RequeueRequested": _by("another attempt asked"),
    "JobPriorityChanged": _priority,
    "JobLimitChanged": _limit,
    "QueueChanged": _queue,
    "NodeDrainRequested": _drain,
    "NodeResumeRequested": _node_resume,
    "NodeForgetRequested": _node_forget,
    "MaintenancePlanned": _planned,
    "MaintenanceCancelled": _cancelled,
}
