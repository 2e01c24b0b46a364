"""The traces of the Muri study: `num_gpu`; `submit_time` and `duration` in milliseconds. They know no users."""

from __future__ import annotations

from pathlib import Path

from tidegate_events.events import NodeJoined

from tidegate_scheduler.simulator.traces import table
from tidegate_scheduler.simulator.traces.training import TrainingJob, workload
from tidegate_scheduler.simulator.workload import Workload

COLUMNS = ("job_id", "num_gpu", "submit_time", "duration", "iteration_time")
TENANT = "muri"


def read(path: Path, nodes: tuple[NodeJoined, ...]) -> Workload:
    """Return the trace as a workload for these nodes. Raises InputError."""
    jobs = [
        TrainingJob(
            name=f"muri-{row.whole('job_id'):05}",
            tenant=TENANT,
            gpus=row.whole("num_gpu"),
            submitted_ms=row.whole("submit_time"),
            work_ms=row.whole("duration", least=1, most=table.YEARS_10_SECONDS * 1000),
        )
        for row in table.rows(path, COLUMNS)
    ]
    return workload(path.stem, nodes, jobs)
