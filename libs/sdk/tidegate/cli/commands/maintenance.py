"""`tidegate maintenance`: windows in which nothing shall run on some nodes."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from tidegate.cli import complete, moments, output, text
from tidegate.cli.commands.acts import Reason
from tidegate.cli.connect import connect

app = typer.Typer(no_args_is_help=True, help="Plan when nodes shall be empty, and take that back.")

_STATES = {"ahead": "ahead", "goes_on": "now", "over": "over", "cancelled": "cancelled"}


@app.command("plan")
def plan(  # noqa: PLR0917
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to call the window.")],
    node: Annotated[list[str], typer.Option(help="A node; may be given repeatedly.", autocompletion=complete.nodes)],
    start: Annotated[str, typer.Option(help="A date, a span from now (2h), or now.")],
    end: Annotated[str, typer.Option(help="A date, or a span from the start (4h).")],
    reason: Reason = "",
    as_json: output.JsonFlag = False,
) -> None:
    """Plan that nothing runs on nodes from a start to an end: nothing is placed there that would still run then.

    The window ends by itself. The same name with other nodes or times is refused (5) until it is cancelled.

    \b
    Examples:
      tidegate maintenance plan kernel-6.12 --node n7 --node n8 --start '2026-12-01 02:00' --end 4h
    """
    start_ns = moments.ahead(start, "--start", time.time_ns())
    end_ns = moments.ahead(end, "--end", start_ns)
    with connect() as client, output.Progress(f"Planning {name}"):
        answer = client.plan_maintenance(name, node, start_ns, end_ns, reason)
    _show(answer, as_json)


@app.command("ls")
def ls(
    everything: Annotated[bool, typer.Option("--all", help="Also those that are over or cancelled.")] = False,
    as_json: output.JsonFlag = False,
) -> None:
    """List the windows that lie ahead or go on, the first to start first.

    \b
    Examples:
      tidegate maintenance ls
    """
    with connect() as client, output.Progress("Asking for the maintenance windows"):
        found = client.maintenance(everything)
    if as_json:
        output.print_document({"maintenance": found})
    elif not found:
        output.note("No maintenance is planned.")
    else:
        output.show(_table(found))


@app.command("cancel")
def cancel(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The window's name.")],
    reason: Reason = "",
    as_json: output.JsonFlag = False,
) -> None:
    """Take a window back, or end one that has begun.

    \b
    Examples:
      tidegate maintenance cancel kernel-6.12
    """
    with connect() as client, output.Progress(f"Cancelling {name}"):
        answer = client.cancel_maintenance(name, reason)
    _show(answer, as_json)


def _show(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        output.print_document(answer)
        return
    same = "" if answer["changed"] else " (nothing changed)"
    print(f"{answer['name']}: {_STATES[answer['state']]}, {_when(answer)} on {', '.join(answer['nodes'])}{same}")


def _when(window: dict[str, Any]) -> str:
    return f"{moments.date_and_time(window['start_ns'])} to {moments.date_and_time(window['end_ns'])}"


def _table(found: list[dict[str, Any]]) -> Any:
    table = output.table()
    for name in ("NAME", "STATE", "START", "END", "LASTS"):
        table.add_column(name, no_wrap=True)
    for name in ("NODES", "PLANNED BY"):
        table.add_column(name, overflow="fold")
    for window in found:
        table.add_row(
            window["name"],
            _STATES[window["state"]],
            moments.date_and_time(window["start_ns"]),
            moments.date_and_time(window["end_ns"]),
            text.since(window["start_ns"], window["end_ns"]),
            ", ".join(window["nodes"]),
            ": ".join(part for part in (window["actor"], window["note"]) if part),
        )
    return table
