"""`tidegate jobs`: the queue and what ran, one line a job."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from tidegate.cli import output, text
from tidegate.cli.connect import connect
from tidegate.cli.states import styled

_REASON_STATES = frozenset({"pending", "suspended", "suspending", "stopping", "failed", "cancelled", "rejected"})
_REASON_CHARS_MAX = 60


def jobs(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's jobs.")] = None,
    state: Annotated[list[str] | None, typer.Option(help="Only jobs in this state; may be given repeatedly.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many, the newest first.")] = 100,
    as_json: output.JsonFlag = False,
) -> None:
    """List jobs, the newest first.

    \b
    Examples:
      tidegate jobs
      tidegate jobs --state pending --state suspended
      tidegate jobs --tenant lab-a --json | jq -r '.jobs[].job_id'
    """
    with connect() as client, output.Progress("Asking for jobs"):
        found = client.jobs(tenant, tuple(state or ()), limit)
    if as_json:
        output.print_document({"jobs": found})
    elif not found:
        output.note("No jobs. Submit one with `tidegate submit job.json`.")
    else:
        output.show(_table(found, time.time_ns()))


def _table(found: list[dict[str, Any]], now_ns: int) -> Any:
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("JOB", no_wrap=True)
    for name in ("NAME", "TENANT"):
        table.add_column(name, overflow="ellipsis", no_wrap=True, max_width=24)
    table.add_column("PRIO", justify="right")
    table.add_column("STATE", no_wrap=True)
    table.add_column("ATTEMPT", justify="right")
    for name in ("NODE", "PHASE"):
        table.add_column(name, overflow="ellipsis", no_wrap=True)
    table.add_column("AGE", justify="right", no_wrap=True)
    table.add_column("REASON", overflow="ellipsis", no_wrap=True)
    for job in found:
        table.add_row(
            job["job_id"],
            text.cell(job["name"]),
            job["tenant"],
            str(job["priority"]),
            styled(job["state"]),
            str(job["attempt"]),
            text.cell(_nodes(job["nodes"])),
            text.cell(job["phase"]),
            text.since(job["submitted_at_ns"], now_ns),
            _reason(job),
        )
    return table


def _nodes(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} +{len(names) - 1}" if names else ""


def _reason(job: dict[str, Any]) -> str:
    """Return why the job is where it is; a job that simply runs needs no reason."""
    if job["state"] not in _REASON_STATES or not job["reasons"]:
        return text.NOTHING
    said = text.reason(job["reasons"][0])
    return said if len(said) <= _REASON_CHARS_MAX else said[: _REASON_CHARS_MAX - 1] + "…"
