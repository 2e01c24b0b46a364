"""How a simulation is told: one table for people, one document for programs; both state what was modelled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from tidegate.cli import text
from tidegate_events.events import QueueChanged

from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.simulator import measures
from tidegate_scheduler.simulator.measures import Measures, Spread
from tidegate_scheduler.simulator.run import JobRun, Run

if TYPE_CHECKING:
    from rich.console import RenderableType

SLOWEST_SHOWN = 5
WHYS_SHOWN = 8


class Asked(msgspec.Struct, frozen=True):
    """What a simulation was asked for with, beside its workload: the nodes, how they were said, and the rules."""

    nodes: int
    nodes_as: str
    parameters: dict[str, int]
    knows_durations: bool
    queues: tuple[QueueChanged, ...] = ()


def progress(name: str) -> str:
    """Return what a simulation does; how far it is, is told by the jobs that have ended."""
    return f"Simulating {name}, jobs that have ended"


def document(run: Run, asked: Asked) -> dict[str, Any]:
    """Return the run as a document: what it was made of, its measures, and each job."""
    return {
        "workload": run.workload,
        "policy": run.rules,
        "seed": run.seed,
        **msgspec.to_builtins(asked),
        "costs": msgspec.to_builtins(run.costs),
        "measures": msgspec.to_builtins(measures.of(run)),
        "jobs": [_job(job) for job in run.jobs],
    }


def _job(job: JobRun) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(job)
    return {**found, "outcome": job.outcome or None}


def lines(run: Run, asked: Asked) -> list[RenderableType]:
    """Return what people read: what was simulated, the measures, and who waited longest."""
    from tidegate.cli.output import table  # noqa: PLC0415 - rich is loaded when something is shown

    found = measures.of(run)
    head = table()
    for _ in range(2):
        head.add_column()
    head.show_header = False
    for name, value in {**_inputs(run, asked), **_outcome(found)}.items():
        head.add_row(name, value)
    shown: list[RenderableType] = [head]
    slowest = sorted((job for job in run.jobs if job.waited_ns), key=lambda job: (-job.waited_ns, job.job))
    if slowest:
        waits = table()
        for name in ("waited longest", "tenant", "GPUs", "in the queue", "work", "ended"):
            waits.add_column(name, justify="left" if name in ("waited longest", "tenant", "ended") else "right")
        for job in slowest[:SLOWEST_SHOWN]:
            waits.add_row(
                job.job,
                job.tenant,
                text.cpus(job.gpus * 1000 + job.gpu_millis),
                text.span(job.waited_ns / SECOND_NS),
                text.span(job.work_seconds),
                job.outcome or "not yet",
            )
        shown += ["", waits]
    return shown + _unserved(run)


def _unserved(run: Run) -> list[RenderableType]:
    """Return why jobs ended otherwise than completed, or did not end: those that have it in common on one line."""
    from tidegate.cli.output import table  # noqa: PLC0415 - rich is loaded when something is shown

    alike: dict[tuple[str, str], list[str]] = {}
    for job in run.jobs:
        if job.outcome != "completed":
            alike.setdefault((job.outcome or "not ended", why(job)), []).append(job.job)
    if not alike:
        return []
    told = table()
    for name in ("did not complete", "jobs", "as", "why"):
        told.add_column(name, justify="right" if name == "jobs" else "left")
    most = sorted(alike.items(), key=lambda item: -len(item[1]))
    for (outcome, reason), jobs in most[:WHYS_SHOWN]:
        told.add_row(outcome, str(len(jobs)), jobs[0], text.cell(reason))
    more = [f"and {text.count(len(most) - WHYS_SHOWN, 'reason')} more"] if len(most) > WHYS_SHOWN else []
    return ["", told, *more]


def why(job: JobRun) -> str:
    """Return in words why a job did not complete, or waits still."""
    return text.reasons([msgspec.to_builtins(reason) for reason in job.reasons])


def _inputs(run: Run, asked: Asked) -> dict[str, str]:
    costs = run.costs
    stated = (
        f"start {text.span(costs.start_ms / 1000)}, checkpoint {text.span(costs.checkpoint_seconds)}, restart "
        f"{text.span(costs.restart_seconds)}, phase {text.span(costs.phase_change_ms / 1000)}, image "
        f"{text.span(costs.image_pull_seconds)}, pass every {text.span(costs.pass_interval_ms / 1000)}"
    )
    if costs.node_failures_per_day_millis:
        stated += (
            f", {costs.node_failures_per_day_millis / 1000:g} failures a node and day, "
            f"back after {text.span(costs.node_repair_seconds)}"
        )
    return {
        "workload": f"{run.workload}, {text.count(len(run.jobs), 'job')} on {text.count(asked.nodes, 'node')} "
        f"({asked.nodes_as})",
        "policy": f"{run.stated or run.rules}, seed {run.seed}",
        "costs": stated,
    }


def _outcome(found: Measures) -> dict[str, str]:
    counts = {
        "completed": found.completed,
        "failed": found.failed,
        "rejected": found.rejected,
        "cancelled": found.cancelled,
        "not ended": found.unfinished,
        "cut off by the recording": found.censored,
    }
    return {
        "jobs": ", ".join(f"{count} {name}" for name, count in counts.items() if count),
        "completion": _spread(found.completion),
        "in the queue": _spread(found.waiting),
        "makespan": f"{text.span(found.makespan_s)} ({found.makespan_s:.0f} s)",
        "GPUs": f"{found.gpu_utilization:.1%} used, {found.gpu_allocation:.1%} given to jobs",
        "jobs at once": f"{found.jobs_at_once:.1f} on average",
        "preemptions": f"{found.preemptions}, {text.span(found.lost_gpu_s)} of GPU time lost",
    }


def _spread(found: Spread) -> str:
    return (
        f"{text.span(found.avg_s)} on average ({found.avg_s:.0f} s), median {text.span(found.p50_s)}, "
        f"99 of 100 within {text.span(found.p99_s)}"
    )
