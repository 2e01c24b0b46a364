"""`tidegate jobs`: the queue and what ran, one line a job."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from tidegate.cli import complete, line, output, text
from tidegate.cli.connect import connect
from tidegate.cli.states import styled

_WAITING_STATES = frozenset({"pending", "suspended"})
_REASON_STATES = frozenset({"pending", "suspended", "suspending", "stopping", "failed", "cancelled", "rejected"})


def jobs(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's jobs.")] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(help="Only jobs in this state; may be given repeatedly.", autocompletion=complete.job_states),
    ] = None,
    start: Annotated[
        bool, typer.Option("--start", help="Only those that wait, first in line first, with when they may start.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many, the newest first.")] = 100,
    as_json: output.JsonFlag = False,
) -> None:
    """List jobs, the newest first; with --start the line of those that wait, the first in it first.

    POSITION is the place in line, START the earliest start that is known, REASON why it waits (or how it ended).

    \b
    Examples:
      tidegate jobs
      tidegate jobs --start
      tidegate jobs --state pending --state suspended
      tidegate jobs --tenant lab-a --json | jq -r '.jobs[].job_id'
      tidegate jobs --start --json | jq '.queue[] | {job_id, position, starts_at_ns}'
    """
    with connect() as client, output.Progress("Asking for jobs"):
        if start:
            waiting = client.queue(tenant, min(limit, 1000))
        else:
            found = client.jobs(tenant, tuple(state or ()), limit)
            in_line = _in_line(client.queue(), found) if _any_waits(found) else {}
    if start:
        _show_line(waiting, as_json=as_json)
    elif as_json:
        output.print_document({"jobs": [_with_place(job, in_line) for job in found]})
    elif not found:
        output.note("No jobs. Submit one with `tidegate submit job.json`.")
    else:
        output.show(_table(found, in_line, time.time_ns()))


def _any_waits(found: list[dict[str, Any]]) -> bool:
    return any(job["state"] in _WAITING_STATES for job in found)


def _in_line(queue: dict[str, Any], found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the places in line of the found jobs, by job."""
    wanted = {job["job_id"] for job in found}
    return {waiting["job_id"]: waiting for waiting in queue["queue"] if waiting["job_id"] in wanted}


def _with_place(job: dict[str, Any], in_line: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the job with `position`, `starts_at_ns` and `starts_basis`, null for one that does not wait."""
    waiting = in_line.get(job["job_id"], {})
    return {**job, **{name: waiting.get(name) for name in ("position", "starts_at_ns", "starts_basis")}}


def _show_line(waiting: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        output.print_document(waiting)
    elif not waiting["queue"]:
        output.note("No job waits.")
    else:
        output.show(line_table(waiting["queue"], waiting["now_ns"]), line.LEGEND)
        if waiting["total"] > len(waiting["queue"]):
            output.note(f"{waiting['total'] - len(waiting['queue'])} more wait; show them with --limit.")
        if waiting["answered_by"] != "scheduler":
            output.note("The scheduler does not answer: reasons are of its last decisions, starts are not known.")


def line_table(queue: list[dict[str, Any]], now_ns: int) -> Any:
    """Return the line of jobs that wait as a table."""
    return _wide_enough(
        _LINE_COLUMNS,
        [
            {
                "POSITION": str(one["position"]),
                "JOB": one["job_id"],
                "NAME": text.cell(one["name"]),
                "TENANT": one["tenant"],
                "PRIO": str(one["priority"]),
                "STATE": styled(one["state"]),
                "WAITS": text.since(one["submitted_at_ns"], now_ns),
                "START": line.start(one, now_ns),
                "REASON": text.reasons(one["reasons"]) or text.NOTHING,
            }
            for one in queue
        ],
        wrapping="REASON",
    )


def _wide_enough(columns: tuple[str, ...], rows: list[dict[str, Any]], wrapping: str = "") -> Any:
    """Return a table of the columns for which the terminal is wide enough; the column `wrapping` takes many lines."""
    width = output.console().width
    names = [name for name in columns if width >= _SHOWN_FROM_CHARS.get(name, 0)]
    table = output.table()
    for name in names:
        table.add_column(name, justify="right" if name in _NUMBERS else "left", no_wrap=name not in _YIELDING)
    for row in rows:
        cut = _YIELDING - {wrapping}
        table.add_row(*(output.one_line(row[name]) if name in cut else row[name] for name in names))
    return table


def _table(found: list[dict[str, Any]], in_line: dict[str, dict[str, Any]], now_ns: int) -> Any:
    return _wide_enough(_COLUMNS, [_cells(job, in_line.get(job["job_id"]), now_ns) for job in found])


_COLUMNS = (
    *("JOB", "NAME", "TENANT", "PRIO", "STATE", "ATTEMPT", "NODE", "PHASE", "STEP", "AGE"),
    *("POSITION", "START", "REASON"),
)
_LINE_COLUMNS = ("POSITION", "JOB", "NAME", "TENANT", "PRIO", "STATE", "WAITS", "START", "REASON")
_SHOWN_FROM_CHARS = {"TENANT": 140, "ATTEMPT": 140, "STEP": 140, "PRIO": 100, "PHASE": 100}
"""How wide a terminal must be to show a column that the others matter more than."""
_NUMBERS = frozenset({"PRIO", "ATTEMPT", "STEP", "AGE", "WAITS", "POSITION", "START"})
_YIELDING = frozenset({"NAME", "TENANT", "NODE", "REASON"})


def _cells(job: dict[str, Any], waiting: dict[str, Any] | None, now_ns: int) -> dict[str, Any]:
    return {
        "JOB": job["job_id"],
        "NAME": text.cell(job["name"]),
        "TENANT": job["tenant"],
        "PRIO": str(job["priority"]),
        "STATE": styled(job["state"]),
        "ATTEMPT": str(job["attempt"]),
        "NODE": text.cell(nodes(job["nodes"])),
        "PHASE": text.cell(job["phase"]),
        "STEP": text.cell(job["step"]),
        "AGE": text.since(job["submitted_at_ns"], now_ns),
        "POSITION": text.cell(waiting and waiting["position"]),
        "START": line.start(waiting, now_ns) if waiting else text.NOTHING,
        "REASON": _reason(job, waiting),
    }


def nodes(names: list[str]) -> str:
    """Return where a job runs: a node, and how many more."""
    return names[0] if len(names) == 1 else f"{names[0]} +{len(names) - 1}" if names else ""


def _reason(job: dict[str, Any], waiting: dict[str, Any] | None) -> str:
    """Return why the job is where it is; a job that simply runs needs no reason."""
    reasons = (waiting or job)["reasons"]
    if job["state"] not in _REASON_STATES or not reasons:
        return text.NOTHING
    return text.reason(reasons[0])
