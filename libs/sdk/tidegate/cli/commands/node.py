"""`tidegate node`: empty a node, give it back, forget a lost one, list all."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from tidegate.cli import complete, moments, output, text
from tidegate.cli.commands.acts import Reason
from tidegate.cli.commands.nodes import nodes
from tidegate.cli.connect import connect

app = typer.Typer(no_args_is_help=True, help="Empty a node for repair, and give it back.")
app.command("list")(nodes)

NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="The node's name.", autocompletion=complete.nodes)]


@app.command("drain")
def drain(
    node: NodeArgument,
    deadline: Annotated[str, typer.Option(help="By when its jobs shall be gone: a span from now, or a date.")],
    reason: Annotated[str, typer.Option(help="Why (needed); it is kept in history.")],
    as_json: output.JsonFlag = False,
) -> None:
    """Place nothing new on a node, and have its jobs save and leave by the deadline. They go on elsewhere.

    \b
    Examples:
      tidegate node drain n7 --deadline 30m --reason "disk is failing"
    """
    now_ns = time.time_ns()
    deadline_ns = moments.ahead(deadline, "--deadline", now_ns)
    with connect() as client, output.Progress(f"Draining {node}"):
        answer = client.drain_node(node, deadline_ns, reason)
    left = text.span((deadline_ns - now_ns) / text.NS_PER_SECOND)
    held = len(answer["sandboxes"])
    words = f"its {held} sandboxes leave within {left}" if held else "nothing runs there"
    _show(answer, f"takes no jobs; {words}", as_json)


@app.command("resume")
def resume(node: NodeArgument, reason: Reason = "", as_json: output.JsonFlag = False) -> None:
    """End the drain or the cordon of a node: it takes jobs again. Any other node is refused (5).

    \b
    Examples:
      tidegate node resume n7
    """
    with connect() as client, output.Progress(f"Resuming {node}"):
        answer = client.resume_node(node, reason)
    why = answer["reason"]
    _show(answer, f"is resumed, but takes no jobs: {text.reason(why)}" if why else "takes jobs", as_json)


@app.command("forget")
def forget(node: NodeArgument, reason: Reason = "", as_json: output.JsonFlag = False) -> None:
    """Keep nothing of a lost node that will not come back. Any other node is refused (5).

    Nodes that nobody drained are forgotten by themselves some days after they were lost. One that comes back joins as a
    new node, and is told to end what runs there from before.

    \b
    Examples:
      tidegate node forget n7 --reason "scrapped"
    """
    with connect() as client, output.Progress(f"Forgetting {node}"):
        answer = client.forget_node(node, reason)
    _show(answer, "is forgotten", as_json)


def _show(answer: dict[str, Any], words: str, as_json: bool) -> None:
    if as_json:
        output.print_document(answer)
    else:
        same = "" if answer["changed"] else " (nothing changed)"
        print(f"{answer['node']} {words}{same}")
