"""The Philly trace as the Chronus study uses it: `user`, `num_gpu`, `submit_time` and `duration` in seconds."""

from __future__ import annotations

from pathlib import Path

from tidegate_events.events import NodeJoined

from tidegate_scheduler.simulator.traces import table
from tidegate_scheduler.simulator.traces.training import TrainingJob, workload
from tidegate_scheduler.simulator.workload import Workload

COLUMNS = ("job_id", "user", "num_gpu", "submit_time", "duration")


def read(path: Path, nodes: tuple[NodeJoined, ...]) -> Workload:
    """Return the trace as a workload for these nodes, its users as tenants. Raises InputError."""
    jobs = [
        TrainingJob(
            name=f"philly-{row.whole('job_id'):06}",
            tenant=row.text("user") or "unknown",
            gpus=row.whole("num_gpu"),
            submitted_ms=row.whole("submit_time") * 1000,
            work_ms=row.whole("duration", least=1, most=table.YEARS_10_SECONDS) * 1000,
        )
        for row in table.rows(path, COLUMNS)
    ]
    return workload(path.stem, nodes, jobs)
