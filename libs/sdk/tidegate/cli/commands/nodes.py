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
        now_ns = time.time_ns()
        output.show(_reasons_table(chosen, now_ns) if reasons else _table(chosen, now_ns))


def _state(node: dict[str, Any]) -> Any:
    """Return the state with what an operator, or the scheduler for its failures, said of it."""
    said = ["draining" if node["sandboxes"] else "drained"] if node["drain"] else []
    said += ["cordoned"] if node["cordoned"] else []
    shown = styled(node["state"])
    return shown.append(f", {', '.join(said)}", style="magenta") if said else shown


def _why(node: dict[str, Any], now_ns: int) -> str:
    """Return why the node takes no jobs; where it takes them, what maintenance lies ahead."""
    if node["reason"] is None:
        next_one = node["maintenance"][0] if node["maintenance"] else None
        if next_one is None:
            return text.NOTHING
        return f"maintenance {next_one['name']} in {text.since(now_ns, next_one['start_ns'])}"
    why, left = dict(node["reason"]), dict(node["reason"]["numbers"] or {})
    for name, words in (("deadline_seconds", "its jobs leave within"), ("ends_seconds", "for another")):
        if name in left:
            why["detail"] = f"{why['detail']}; {words} {text.span(left.pop(name))}"
    return text.reason({**why, "numbers": left})


def _since_ns(node: dict[str, Any]) -> int:
    """Return since when the node takes no jobs, as far as that is known."""
    code = node["reason"]["code"]
    if code == "NodeDrained":
        return int(node["drain"]["since_ns"])
    if code == "Maintenance":
        return int(node["maintenance"][0]["start_ns"])
    return int((node["cordoned_ns"] if code == "NodeCordoned" else None) or node["state_since_ns"])


def _reasons_table(found: list[dict[str, Any]], now_ns: int) -> Any:
    table = output.table()
    table.add_column("REASON", overflow="fold")
    for name in ("SINCE", "FOR", "NODE", "STATE"):
        table.add_column(name, no_wrap=True)
    for node in found:
        since_ns = _since_ns(node)
        table.add_row(
            _why(node, now_ns),
            moments.date_and_time(since_ns),
            text.since(since_ns, now_ns),
            node["node"],
            _state(node),
        )
    return table


def _table(found: list[dict[str, Any]], now_ns: int) -> Any:
    table = output.table()
    for name in ("NODE", "STATE"):
        table.add_column(name, no_wrap=True)
    for name in ("CPU", "MEM", "GPU"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("LEVELS")
    placed = any(text.place(node) for node in found)
    if placed:
        table.add_column("PLACE", overflow="fold")
    table.add_column("SANDBOXES", overflow="fold")
    table.add_column("REASON", overflow="fold")
    for node in found:
        has, taken = node["capacity"], node["allocated"]
        table.add_row(
            node["node"],
            _state(node),
            f"{text.cpus(taken['cpu_millis'])}/{text.cpus(has['cpu_millis'])}",
            f"{text.mib(taken['memory_mib'])}/{text.mib(has['memory_mib'])}",
            f"{text.gpus(taken)}/{has['gpus']}" if has["gpus"] else text.NOTHING,
            _levels(node),
            *([text.place(node) or text.NOTHING] if placed else []),
            text.cell(_sandboxes(node["sandboxes"])),
            _why(node, now_ns),
        )
    return table


def _levels(node: dict[str, Any]) -> str:
    """Return the levels that a node offers, and at which of them it passes GPUs where it has some but not at all."""
    passing = node["gpu_levels"]
    told = bool(node["capacity"]["gpus"]) and passing != node["levels"]
    return ",".join(f"{level}(gpu)" if told and level in passing else level for level in node["levels"])


def _sandboxes(held: list[dict[str, Any]]) -> str:
    """Return which sandboxes a node holds, or how many where they are too many for a line."""
    if len(held) > _SANDBOXES_NAMED_MAX:
        return f"{len(held)} of {len({one['job_id'] for one in held})} jobs"
    return " ".join(f"{one['job_id']}.{one['attempt']}.{one['rank']}" for one in held)
