"""What each training process said last, until the next sample takes it; lost when nobody listens, never journaled."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tidegate.protocol import METRICS_MAX
from tidegate_events.telemetry import CheckpointTiming, ProcessSample

from tidegate_executor.attempts.state import AttemptState
from tidegate_executor.channel.handler import Origin
from tidegate_executor.channel.messages import Report, Saved
from tidegate_executor.sampling.stamp import Stamp

ROWS_MAX = 4096  # processes that wait to be sampled
CHECKPOINTS_MAX = 16  # saves of one process between two samples


@dataclass
class _Row:
    """One process since the last sample."""

    state: AttemptState
    at_ns: int
    step: int | None = None
    progress: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    dropped: int = 0
    checkpoints: list[CheckpointTiming] = field(default_factory=list)


class ProcessReports:
    """Holds one row per process; taking the rows empties it. `dropped` counts processes it had no room for."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, int], _Row] = {}
        self.dropped = 0

    def report(self, state: AttemptState, origin: Origin, report: Report, now_ns: int) -> None:
        """Take a process's report: the newest value of each metric stays, and the time is the agent's."""
        row = self._row(state, origin, now_ns)
        if row is None:
            return
        row.at_ns = now_ns
        row.step = row.step if report.step is None else report.step
        row.progress = row.progress if report.progress is None else report.progress
        row.dropped += report.dropped
        newest = report.values()
        # The oldest names go first: what was reported now is at the end of the dict.
        row.metrics = dict(list(({**row.metrics, **newest}).items())[-METRICS_MAX:])

    def saved(self, state: AttemptState, origin: Origin, saved: Saved, now_ns: int) -> None:
        """Take the times of a checkpoint that became durable."""
        row = self._row(state, origin, now_ns)
        if row is not None and len(row.checkpoints) < CHECKPOINTS_MAX:
            row.checkpoints.append(
                CheckpointTiming(
                    step=saved.step, copy_seconds=saved.copy_ms / 1000, write_seconds=saved.write_ms / 1000
                )
            )

    def _row(self, state: AttemptState, origin: Origin, now_ns: int) -> _Row | None:
        key = (state.id, origin.component, origin.replica)
        row = self._rows.get(key)
        if row is None:
            if len(self._rows) >= ROWS_MAX:
                self.dropped += 1
                return None
            row = self._rows[key] = _Row(state, now_ns)
        row.state = state
        return row

    def take(self, stamp: Stamp) -> list[ProcessSample]:
        """Return what came since the last time, one sample per process."""
        rows, self._rows = self._rows, {}
        return [_sample(stamp, row, component, replica) for (_, component, replica), row in rows.items()]


def _sample(stamp: Stamp, row: _Row, component: str, replica: int) -> ProcessSample:
    state = row.state
    return ProcessSample(
        **stamp.next(row.at_ns),
        tenant=state.tenant,
        job=state.job,
        attempt=state.attempt,
        rank=state.rank,
        component=component,
        replica=replica,
        step=row.step,
        progress=row.progress,
        metrics={name: value for name, value in row.metrics.items() if math.isfinite(value)},
        not_finite=tuple(name for name, value in row.metrics.items() if not math.isfinite(value)),
        phase=state.phase.current,
        phase_flips=state.phase.flips,
        dropped_reports=row.dropped,
        checkpoints=tuple(row.checkpoints),
    )
