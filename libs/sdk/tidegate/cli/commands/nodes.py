"""`tidegate nodes`: what each node has, and how much of it is taken."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tidegate.cli import output, text
from tidegate.cli.connect import connect
from tidegate.cli.states import styled


def nodes(
    state: Annotated[str | None, typer.Option(help="Only nodes in this state: reachable, unreachable, lost.")] = None,
    as_json: output.JsonFlag = False,
) -> None:
    """List nodes with their allocated and total resources.

    \b
    Examples:
      tidegate nodes
      tidegate nodes --state unreachable
      tidegate nodes --json | jq '.nodes[] | {node, allocated}'
    """
    with connect() as client, output.Progress("Asking for nodes"):
        found = [node for node in client.nodes() if state in (None, node["state"])]
    if as_json:
        output.print_document({"nodes": found})
    elif not found:
        output.note("No nodes. A node joins when its agent (`tidegate-executor`) starts.")
    else:
        output.show(_table(found))


def _table(found: list[dict[str, Any]]) -> Any:
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("NODE", "STATE"):
        table.add_column(name, no_wrap=True)
    for name in ("CPU", "MEM", "GPU"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("LEVELS")
    table.add_column("SANDBOXES", overflow="fold")
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
        )
    return table


def _sandboxes(held: list[dict[str, Any]]) -> str:
    return " ".join(f"{one['job_id']}.{one['attempt']}.{one['rank']}" for one in held)
