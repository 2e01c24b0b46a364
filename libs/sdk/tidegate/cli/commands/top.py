"""`tidegate top`: nodes, what runs, and who waits, on one screen that keeps up."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli import exits, moments, output, text
from tidegate.cli.commands.jobs import line_table, nodes
from tidegate.cli.connect import connect
from tidegate.cli.states import styled

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tidegate.client import Client

BAR_CHARS = 10
_FILLED, _EMPTY = "█", "░"
Snapshot = dict[str, Any]


def top(
    interval: Annotated[float, typer.Option(min=0.5, max=60, help="Seconds between two looks.")] = 2.0,
    limit: Annotated[int, typer.Option(min=1, max=200, help="At most so many jobs, and so many of the line.")] = 20,
    once: Annotated[bool, typer.Option("--once", help="Look once, print, and end.")] = False,
    as_json: output.JsonFlag = False,
) -> None:
    """Show nodes, running jobs and the line, live; Ctrl-C ends it.

    CPU and MEM are what the kernel sees used of what was given. STEPS/S comes from `job.report`, over the last minute.
    Without a terminal, or with --json, it looks once.

    \b
    Examples:
      tidegate top
      tidegate top --interval 5
      tidegate top --once
      tidegate top --json | jq '.jobs[] | {job_id, rate: .live.steps_per_second}'
    """
    with connect() as client:
        if as_json:
            output.print_document(client.top(limit))
        elif once or not sys.stdout.isatty():
            output.show(*_screen(client.top(limit)))
        else:
            _keep_up(client, limit, interval)


def _keep_up(client: Client, limit: int, interval: float) -> None:
    """Redraw until Ctrl-C, which is a good end here; a gateway that is away is waited for."""
    from rich.console import Group  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from tidegate.client import Unavailable  # noqa: PLC0415

    seen: list[RenderableType] = []
    try:
        with Live(console=output.console(), screen=True, auto_refresh=False) as live:
            while True:
                try:
                    seen = _screen(client.top(limit))
                except Unavailable as error:
                    live.update(Group(Text(f"gateway away: {error}", style="bold red"), *seen), refresh=True)
                else:
                    live.update(Group(*seen), refresh=True)
                time.sleep(interval)
    except KeyboardInterrupt:
        raise typer.Exit(exits.OK) from None


def _screen(found: Snapshot) -> list[RenderableType]:
    parts: list[RenderableType] = [_head(found), "", _nodes(found["nodes"])]
    if found["jobs"]:
        parts += ["", _jobs(found["jobs"], found["now_ns"])]
    if found["queue"]:
        parts += ["", line_table(found["queue"], found["now_ns"])]
    if not found["jobs"] and not found["queue"]:
        parts += ["", "No job runs or waits."]
    return parts


def _head(found: Snapshot) -> RenderableType:
    from rich.text import Text  # noqa: PLC0415

    counts = ", ".join(f"{count} {state}" for state, count in found["job_counts"].items() if count) or "no jobs"
    leader = found["leader"]
    leads = f"{leader['instance']} leads" if leader else "NOBODY LEADS"
    journal = found["journal"]
    lag = "journal AWAY" if journal["end"] is None else f"journal {journal['end']}, lag {journal['lag']}"
    style = "bold" if leader and found["ready"] and journal["end"] is not None else "bold red"
    return Text(f"{moments.time_of_day(found['now_ns'])}  {leads}  {lag}  jobs: {counts}", style=style)


def _nodes(found: list[dict[str, Any]]) -> RenderableType:
    table = output.table()
    for name in ("NODE", "STATE"):
        table.add_column(name, no_wrap=True)
    for name in ("CPU given", "CPU used", "MEM given", "MEM used", "GPU"):
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("SANDBOXES", justify="right")
    table.add_column("REASON", overflow="ellipsis", no_wrap=True)
    for node in found:
        has, taken, live = node["capacity"], node["allocated"], node["live"]
        used_bytes = live["memory_used_bytes"]
        table.add_row(
            node["node"],
            styled(node["state"]),
            _given(taken["cpu_millis"], has["cpu_millis"], text.cpus),
            text.NOTHING if live["cpu_ratio"] is None else f"{live['cpu_ratio']:.0%}",
            _given(taken["memory_mib"], has["memory_mib"], text.mib),
            text.NOTHING if used_bytes is None else text.mib(int(used_bytes) >> 20),
            f"{text.gpus(taken)}/{has['gpus']}" if has["gpus"] else text.NOTHING,
            str(len(node["sandboxes"])),
            node["reason"]["code"] if node["reason"] else text.NOTHING,
        )
    return table


def _given(taken: int, has: int, show: Any) -> str:
    filled = min(BAR_CHARS, taken * BAR_CHARS // has) if has else 0
    return f"{_FILLED * filled}{_EMPTY * (BAR_CHARS - filled)} {show(taken)}/{show(has)}"


def _jobs(found: list[dict[str, Any]], now_ns: int) -> RenderableType:
    table = output.table()
    table.add_column("JOB", no_wrap=True)
    table.add_column("NAME", overflow="ellipsis", no_wrap=True, max_width=24)
    table.add_column("PRIO", justify="right")
    for name in ("STATE", "NODE", "PHASE"):
        table.add_column(name, no_wrap=True)
    for name in ("STEP", "STEPS/S", "CPU", "MEM", "GPU", "RUNS"):
        table.add_column(name, justify="right", no_wrap=True)
    for job in found:
        live, quotas = job["live"], job["quotas"]
        table.add_row(
            job["job_id"],
            text.cell(job["name"]),
            str(job["priority"]),
            styled(job["state"]),
            text.cell(nodes(job["nodes"])),
            text.cell(job["phase"]),
            text.cell(live["step"] if live["step"] is not None else job["step"]),
            text.NOTHING if live["steps_per_second"] is None else f"{live['steps_per_second']:.4g}",
            _used(live["cpu_cores"], quotas["cpu_millis"], lambda cores: f"{cores:.2g}", text.cpus),
            _used(live["memory_bytes"], quotas["memory_mib"], lambda size: text.mib(int(size) >> 20), text.mib),
            text.gpus(quotas) if quotas["gpus"] or quotas.get("gpu_millis") else text.NOTHING,
            text.since(job["started_at_ns"], now_ns),
        )
    return table


def _used(used: float | None, given: int, show_used: Any, show_given: Any) -> str:
    return f"{text.NOTHING if used is None else show_used(used)}/{show_given(given)}"
