"""`tidegate queue`: the tenants' queues: what each is guaranteed, may have at most, and uses."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tidegate.cli import amounts, exits, output, text
from tidegate.cli.commands.acts import Reason
from tidegate.cli.connect import connect
from tidegate.cli.exits import CommandError

app = typer.Typer(no_args_is_help=True, help="Share the cluster among tenants: weights, guarantees, ceilings.")

TenantArgument = Annotated[str, typer.Argument(metavar="TENANT", help="Whose queue.")]
Guaranteed = Annotated[
    str | None, typer.Option(help="What it gets back from borrowers: cpu=64,mem=256G,gpu=8; or none.")
]
Ceiling = Annotated[
    str | None, typer.Option(help="What it never has more than; an amount not named is not bounded; or none.")
]


@app.command("list")
def listing(as_json: output.JsonFlag = False) -> None:
    """List the queues, and what each tenant uses of the cluster.

    \b
    Examples:
      tidegate queue list
      tidegate queue list --json | jq '.queues[] | {tenant, used}'
    """
    with connect() as client, output.Progress("Asking for the queues"):
        found = client.queues()
    if as_json:
        output.print_document({"queues": found})
    elif not found:
        output.note("No tenant has a queue or a job. Create a queue with `tidegate queue create TENANT`.")
    else:
        output.show(_table(found))


@app.command("create")
def create(  # noqa: PLR0917
    tenant: TenantArgument,
    weight: Annotated[int, typer.Option(min=1, help="Its share against the others'.")] = 1,
    guaranteed: Guaranteed = None,
    ceiling: Ceiling = None,
    reason: Reason = "",
    as_json: output.JsonFlag = False,
) -> None:
    """Give a tenant's queue its settings. One that has others already is refused (5): set it.

    \b
    Examples:
      tidegate queue create lab-a --weight 3 --guaranteed cpu=64,mem=256G,gpu=8 --ceiling gpu=16
    """
    least = None if guaranteed is None else amounts.parse(guaranteed, "--guaranteed")
    most = None if ceiling is None else amounts.parse(ceiling, "--ceiling")
    with connect() as client, output.Progress(f"Creating the queue {tenant}"):
        answer = client.create_queue(tenant, weight=weight, guaranteed=least, ceiling=most, reason=reason)
    _show(answer, as_json)


@app.command("set")
def change(  # noqa: PLR0917
    tenant: TenantArgument,
    weight: Annotated[int | None, typer.Option(min=1, help="Its share against the others'.")] = None,
    guaranteed: Guaranteed = None,
    ceiling: Ceiling = None,
    reason: Reason = "",
    as_json: output.JsonFlag = False,
) -> None:
    """Change settings of a queue; what is not given stays.

    \b
    Examples:
      tidegate queue set lab-a --weight 5
      tidegate queue set lab-a --ceiling none
    """
    if weight is None and guaranteed is None and ceiling is None:
        raise CommandError("Nothing to set.", "Give --weight, --guaranteed or --ceiling.", exits.USAGE)
    settings: dict[str, Any] = {} if weight is None else {"weight": weight}
    if guaranteed is not None:
        settings["guaranteed"] = amounts.parse(guaranteed, "--guaranteed")
    if ceiling is not None:
        settings["ceiling"] = amounts.parse(ceiling, "--ceiling")
    with connect() as client, output.Progress(f"Setting the queue {tenant}"):
        answer = client.set_queue(tenant, reason=reason, **settings)
    _show(answer, as_json)


@app.command("stop")
def stop(
    tenant: TenantArgument,
    reason: Annotated[str, typer.Option(help="Why (needed); it is kept in history.")],
    as_json: output.JsonFlag = False,
) -> None:
    """Place nothing more of a tenant. What runs goes on, and the queue keeps its order.

    \b
    Examples:
      tidegate queue stop lab-b --reason "over budget until Monday"
    """
    with connect() as client, output.Progress(f"Stopping the queue {tenant}"):
        answer = client.stop_queue(tenant, reason)
    _show(answer, as_json)


@app.command("start")
def start(tenant: TenantArgument, reason: Reason = "", as_json: output.JsonFlag = False) -> None:
    """Place jobs of a tenant again.

    \b
    Examples:
      tidegate queue start lab-b
    """
    with connect() as client, output.Progress(f"Starting the queue {tenant}"):
        answer = client.start_queue(tenant, reason)
    _show(answer, as_json)


def _show(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        output.print_document(answer)
        return
    parts = [f"weight {answer['weight']}"]
    parts += [f"guaranteed {amounts.shown(answer['guaranteed'])}"] if answer["guaranteed"] else []
    parts += [f"at most {amounts.shown(answer['ceiling'])}"] if answer["ceiling"] else []
    parts += ["stopped"] if answer["stopped"] else []
    same = "" if answer["changed"] else " (nothing changed)"
    print(f"{answer['tenant']}: {', '.join(parts)}{same}")


def _table(found: list[dict[str, Any]]) -> Any:
    table = output.table()
    for name in ("TENANT", "STATE"):
        table.add_column(name, no_wrap=True)
    for name in ("WEIGHT", "USED", "GUARANTEED", "CEILING", "RUN", "WAIT", "HELD"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("SET BY", overflow="fold")
    for queue in found:
        table.add_row(
            queue["tenant"],
            "stopped" if queue["stopped"] else "open",
            str(queue["weight"]),
            amounts.shown(queue["used"]),
            amounts.shown(queue["guaranteed"]),
            amounts.shown(queue["ceiling"]),
            *(str(queue[name]) for name in ("running", "waiting", "held")),
            text.cell(": ".join(part for part in (queue["actor"], queue["note"]) if part)),
        )
    return table
