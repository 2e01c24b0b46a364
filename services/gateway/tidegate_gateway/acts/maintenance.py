"""Maintenance windows: which nodes shall be empty from when until when."""

from __future__ import annotations

from functools import partial

import msgspec
from tidegate_events import events as e

from tidegate_gateway.acts.base import Asked, CannotError, EventMaker, UnknownError, WrongError
from tidegate_gateway.submission.bounds import YEAR_SECONDS
from tidegate_gateway.submission.problems import item, listed_names
from tidegate_gateway.view.model import WINDOWS_AHEAD_MAX, Maintenance
from tidegate_gateway.view.projection import View

NS_PER_SECOND = 1_000_000_000


class Window(msgspec.Struct, frozen=True):
    """A window as it is asked for."""

    name: str
    nodes: tuple[str, ...]
    start_ns: int
    end_ns: int


def plan(view: View, window: Window, asked: Asked, now_ns: int) -> EventMaker | None:
    """Ask for the window."""
    for index, node in enumerate(window.nodes):
        if node not in view.nodes:
            accepted = "one of " + listed_names(view.nodes) if view.nodes else "a node that joined"
            raise WrongError(item("nodes", index), "there is no such node", accepted)
    if window.end_ns <= window.start_ns or window.end_ns - window.start_ns > YEAR_SECONDS * NS_PER_SECOND:
        raise WrongError("end_ns", "is not after the start, or more than a year after it", "a time after start_ns")
    known = view.maintenance.get(window.name)
    if known is not None and not known.is_over(now_ns):
        if (known.nodes, known.start_ns, known.end_ns) == (window.nodes, window.start_ns, window.end_ns):
            return None
        problem = f"there is a maintenance window {window.name} with other nodes or times"
        raise CannotError("maintenance_exists", problem, "another name, or the same once that one is cancelled or over")
    if window.end_ns <= now_ns:
        raise WrongError("end_ns", "is past", f"a time after now ({now_ns})")
    if sum(not each.is_over(now_ns) for each in view.maintenance.values()) >= WINDOWS_AHEAD_MAX:
        raise CannotError("too_many", f"{WINDOWS_AHEAD_MAX} maintenance windows lie ahead", "cancel one first")
    return partial(
        e.MaintenancePlanned,
        name=window.name,
        nodes=window.nodes,
        start_ns=window.start_ns,
        end_ns=window.end_ns,
        actor=asked.actor,
        note=asked.note,
    )


def cancel(view: View, name: str, asked: Asked, now_ns: int) -> EventMaker | None:
    """Take a window back, or end one that has begun."""
    known = known_window(view, name, now_ns)
    if known.cancelled:
        return None
    if known.is_over(now_ns):
        raise CannotError("over", f"the maintenance window {name} is over", "one that lies ahead or goes on")
    return partial(e.MaintenanceCancelled, name=name, actor=asked.actor, note=asked.note)


def known_window(view: View, name: str, now_ns: int) -> Maintenance:
    """Return the window. Raises UnknownError."""
    if (known := view.maintenance.get(name)) is None:
        ahead = [each.name for each in view.maintenance.values() if not each.is_over(now_ns)]
        raise UnknownError(
            "maintenance", name, "one of " + listed_names(ahead) if ahead else "a window that is planned"
        )
    return known
