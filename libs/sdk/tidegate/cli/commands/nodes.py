"""`tidegate nodes`: what each node has, how much of it is taken, and why it takes no jobs where it takes none."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from tidegate.cli import complete, moments, output, text
from tidegate.cli.connect import connect
from tidegate.cli.states import styled

_SANDBOXES_NAMED_MAX = 2


def nodes(
    state: Annotated[
        str | None,
        typer.Option(
            help="Only nodes in this state: reachable, unreachable, lost.", autocompletion=complete.node_states
        ),
    ] = None,
    reasons: Annotated[
        bool, typer.Option("--reasons", "-R", help="Only nodes that take no jobs: why, and since when.")
    ] = False,
    as_json: output.JsonFlag = False,
) -> None:
    """List nodes with their allocated and total resources, and why a node takes no jobs.

    \b
    Examples:
      tidegate nodes
      tidegate nodes -R
      tidegate nodes --state unreachable
      tidegate nodes --json | jq '.nodes[] | {node, allocated}'
    """
    with connect() as client, output.Progress("Asking for nodes"):
        found = [node for node in client.nodes() if state in (None, node["state"])]
    chosen = [node for node in found if node["reason"]] if reasons else found
    if as_json:
        output.print_document({"nodes": chosen})
    elif not found:
        output.note("No nodes. A node joins when its agent (`tidegate-executor`) starts.")
    elif not chosen:
        output.note(f"All {len(found)} nodes take jobs.")
    else:
        output.show(_reasons_table(chosen) if reasons else _table(chosen))


def _reasons_table(found: list[dict[str, Any]]) -> Any:
    table = output.table()
    table.add_column("REASON", overflow="fold")
    for name in ("SINCE", "FOR", "NODE", "STATE"):
        table.add_column(name, no_wrap=True)
    now_ns = time.time_ns()
    for node in found:
        since_ns = node["state_since_ns"]
        table.add_row(
            text.reason(node["reason"]),
            moments.date_and_time(since_ns),
            text.since(since_ns, now_ns),
            node["node"],
            styled(node["state"]),
        )
    return table


def _table(found: list[dict[str, Any]]) -> Any:
    table = output.table()
    for name in ("NODE", "STATE"):
        table.add_column(name, no_wrap=True)
    for name in ("CPU", "MEM", "GPU"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("LEVELS")
    table.add_column("SANDBOXES", overflow="fold")
    table.add_column("REASON", overflow="fold")
    for node in found:
        has, taken = node["capacity"], node["allocated"]
        table.add_row(
            node["node"],
            styled(node["state"]),
            f"{text.cpus(taken['cpu_millis'])}/{text.cpus(has['cpu_millis'])}",
            f"{text.mib(taken['memory_mib'])}/{text.mib(has['memory_mib'])}",
            f"{taken['gpus']}/{has['gpus']}" if has["gpus"] else text.NOTHING,
            ",".join(node["levels"]),
            text.cell(_sandboxes(node["sandboxes"])),
            text.reason(node["reason"]) if node["reason"] else text.NOTHING,
        )
    return table


def _sandboxes(held: list[dict[str, Any]]) -> str:
    """Return which sandboxes a node holds, or how many where they are too many for a line."""
    if len(held) > _SANDBOXES_NAMED_MAX:
        return f"{len(held)} of {len({one['job_id'] for one in held})} jobs"
    return " ".join(f"{one['job_id']}.{one['attempt']}.{one['rank']}" for one in held)
