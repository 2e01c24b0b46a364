"""`tidegate checkpoint`: what a job saved, and layers of it taken out."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from tidegate.cli import output, text
from tidegate.cli.connect import connect
from tidegate.cli.states import styled
from tidegate.cli.wording import short

app = typer.Typer(no_args_is_help=True, help="List a job's checkpoints and take layers out of them.")

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")]


@app.command("ls")
def ls(job: JobArgument, as_json: output.JsonFlag = False) -> None:
    """List a job's checkpoints, the newest first.

    \b
    Examples:
      tidegate checkpoint ls j-4k2mz7q5x3w6y2ab
      tidegate checkpoint ls j-4k2mz7q5x3w6y2ab --json | jq '.checkpoints[0].id'
    """
    with connect() as client, output.Progress(f"Asking for the checkpoints of {job}"):
        found = client.checkpoints(job)
    if as_json:
        output.print_document({"job_id": job, "checkpoints": found})
    elif not found:
        output.note(f"{job} has saved no checkpoint yet.")
    else:
        output.show(_table(found, time.time_ns()))


def _table(found: list[dict[str, Any]], now_ns: int) -> Any:
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("CHECKPOINT", "STEP", "ATTEMPT", "RANK", "NODE", "TIER", "STATUS", "SIZE", "LAYERS", "AGE"):
        table.add_column(name, justify="right" if name in ("STEP", "ATTEMPT", "RANK", "SIZE", "AGE") else "left")
    for one in found:
        table.add_row(
            short(one["id"]),
            str(one["step"]),
            str(one["attempt"]),
            str(one["rank"]),
            one["node"],
            one["tier"],
            styled(one["status"]),
            text.size(one["size_bytes"]),
            ",".join(layer["name"] for layer in one["layers"]),
            text.since(one["saved_at_ns"], now_ns),
        )
    return table
