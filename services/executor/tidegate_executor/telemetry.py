"""The newest metrics of each process, for those who watch; never journaled, and lost when nobody listens."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from tidegate_events.subjects import token

from tidegate_executor.channel.handler import Origin
from tidegate_executor.channel.messages import Report

INTERVAL_SECONDS = 1.0
ROWS_MAX = 4096  # processes whose newest report waits to be sent


def subject(node: str) -> str:
    """Return where a node's telemetry goes (core NATS)."""
    return f"tg.telemetry.{token(node)}"


class Telemetry:
    """Holds one row per process; taking the rows empties it, so each is sent at most once per interval."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._rows: dict[tuple[str, int, int, str, int], dict[str, Any]] = {}
        self.dropped = 0

    def report(self, origin: Origin, report: Report, *, flips: int) -> None:
        """Take a process's newest report; `flips` counts the phase changes that were too quick to be facts."""
        of = origin.sandbox
        key = (of.job, of.attempt, of.rank, origin.component, origin.replica)
        if key not in self._rows and len(self._rows) >= ROWS_MAX:
            self.dropped += 1
            return
        self._rows[key] = {
            "node": self._node,
            "job": of.job,
            "attempt": of.attempt,
            "rank": of.rank,
            "component": origin.component,
            "replica": origin.replica,
            "at_ns": report.at_ns,
            "step": report.step,
            "progress": report.progress,
            "metrics": {name: _wire(value) for name, value in report.values().items()},
            "phase_flips": flips,
        }

    def take(self) -> list[bytes]:
        """Return what came since the last time, one JSON message per process."""
        rows, self._rows = self._rows, {}
        return [msgspec.json.encode(row) for row in rows.values()]


def _wire(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
