"""Which reader a trace needs: its columns tell, or that it is JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tidegate_events.events import NodeJoined

from tidegate_scheduler.simulator.errors import InputError
from tidegate_scheduler.simulator.traces import described, muri, openb, philly, table
from tidegate_scheduler.simulator.workload import Workload

DOUBLED_SHOWN = 8
Reader = Callable[[Path, tuple[NodeJoined, ...]], Workload]

READERS: tuple[tuple[str, tuple[str, ...], Reader], ...] = (
    ("muri", muri.COLUMNS, muri.read),
    ("philly", philly.COLUMNS, philly.read),
    ("openb", openb.COLUMNS, openb.read),
)
"""Formats, what they are known by, and their readers; the first whose columns are all there is taken."""


def read(path: Path, nodes: tuple[NodeJoined, ...]) -> Workload:
    """Return the workload of a trace for these nodes. Raises InputError: no such file, no known format, or damage."""
    if path.suffix == ".json":
        return _each_once(path, described.read(path, nodes))
    names = table.columns(path)
    for _, needed, reader in READERS:
        if set(needed) <= set(names):
            return _each_once(path, reader(path, nodes))
    known = "; ".join(f"{name} ({', '.join(needed)})" for name, needed, _ in READERS)
    raise InputError(
        f"{path} is of no known format: it has the columns {', '.join(names)}. Accepted are {known}; or .json"
    )


def _each_once(path: Path, workload: Workload) -> Workload:
    doubled = [job for job, count in Counter(each.job for each in workload.arrivals).items() if count > 1]
    if doubled:
        raise InputError(f"{path} has {', '.join(doubled[:DOUBLED_SHOWN])} more than once; accepted is each job once")
    return workload
