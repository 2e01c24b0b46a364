"""`tidegate status`: whether the cluster works, in one look."""

from __future__ import annotations

from typing import Any

import typer

from tidegate.cli import exits, local_stack, output, text
from tidegate.cli.connect import connect


def status(as_json: output.JsonFlag = False) -> None:
    """Show the journal, the leader, the services, and how many jobs and nodes are in which state.

    Of a local stack also its processes, its database and where its metrics are.

    Exits with 1 where the gateway is not ready or nobody leads.

    \b
    Examples:
      tidegate status
      tidegate status --json | jq .journal.lag
    """
    with connect() as client, output.Progress("Asking for the status"):
        found = client.status()
        url = client.url
    stack = local_stack.read(url)
    if as_json:
        output.print_document({**found, "gateway_url": url, "stack": stack})
    else:
        _show(found, url)
        if stack is not None:
            _show_stack(stack)
    if not found["ready"] or not found["leads_now"]:
        raise typer.Exit(exits.FAILED)


def _show(found: dict[str, Any], url: str) -> None:
    from rich.table import Table  # noqa: PLC0415

    now_ns = found["now_ns"]
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(style="bold")
    facts.add_column()
    facts.add_row("gateway", f"{url} ({'ready' if found['ready'] else 'NOT READY'})")
    facts.add_row("journal", _journal(found["journal"]))
    facts.add_row("leader", _leader(found, now_ns))
    facts.add_row(
        "history", f"{found['passes']} passes, {found['decisions']} decisions, {found['void_events']} void events"
    )
    facts.add_row("jobs", _counts(found["jobs"]))
    facts.add_row("nodes", _counts(found["nodes"]))
    services = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("SERVICE", "INSTANCE", "EPOCH", "LAST WROTE"):
        services.add_column(name)
    for service in found["services"]:
        ago = text.since(service["last_at_ns"], now_ns)
        services.add_row(service["service"], service["instance"], text.cell(service["epoch"]), f"{ago} ago")
    output.show(facts, "", services)


def _show_stack(stack: dict[str, Any]) -> None:
    from rich.table import Table  # noqa: PLC0415

    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(style="bold")
    facts.add_column()
    for name in ("home", "database", "metrics_url"):
        if stack[name]:
            facts.add_row(name.removesuffix("_url"), stack[name])
    processes = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("PROCESS", "PID", "READY", "RESTARTS"):
        processes.add_column(name)
    for name, process in stack["processes"].items():
        processes.add_row(name, str(process["pid"]), "yes" if process["ready"] else "NO", str(process["restarts"]))
    output.show("", facts, "", processes)


def _journal(journal: dict[str, Any]) -> str:
    if journal["end"] is None:
        return f"AWAY (folded up to {journal['folded']})"
    return f"{journal['end']} frames, {journal['lag']} of them not folded yet"


def _leader(found: dict[str, Any], now_ns: int) -> str:
    leader = found["leader"]
    if leader is None:
        return "NONE: nothing is scheduled until a scheduler takes the lead"
    who = f"{leader['instance']} (epoch {leader['epoch']}, "
    who += f"last pass {text.since(at_ns, now_ns)} ago)" if (at_ns := leader["last_pass_at_ns"]) else "no pass yet)"
    return who if found["leads_now"] else f"NONE ANSWERS: nothing is scheduled meanwhile; the last one was {who}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "none"
