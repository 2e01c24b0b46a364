"""`tidegate checkpoint`: what a job saved, and layers of it taken out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from tidegate.cli import complete, output, text
from tidegate.cli.connect import connect
from tidegate.cli.states import styled
from tidegate.cli.wording import short

app = typer.Typer(no_args_is_help=True, help="List a job's checkpoints and take layers out of them.")

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.", autocompletion=complete.jobs)]


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


@app.command("restore")
def restore(  # noqa: PLR0917
    job: JobArgument,
    layer: Annotated[
        list[str] | None, typer.Option(help="This layer; may be given repeatedly. Default: model.")
    ] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Of this checkpoint (its id) instead of the newest.")] = None,
    to: Annotated[Path | None, typer.Option(help="Copy the files here; without it, only the plan is shown.")] = None,
    tier_dir: Annotated[
        Path | None,
        typer.Option(help="Read only this directory of <tenant>/<job>. Default: the nearest tier."),
    ] = None,
    as_json: output.JsonFlag = False,
) -> None:
    """Take layers out of a checkpoint, each byte compared with its hash. The job itself is not touched.

    \b
    Examples:
      tidegate checkpoint restore j-4k2mz7q5x3w6y2ab --layer model
      tidegate checkpoint restore j-4k2mz7q5x3w6y2ab --layer model --layer state --to ./restored
    """
    with connect() as client, output.Progress("Asking for a plan") as progress:
        plan = client.restore(job, layer or ["model"], checkpoint)
        files = [str(path) for path in _carry_out(plan, tier_dir, to, progress)] if to is not None else None
    if as_json:
        output.print_document(plan if files is None else {**plan, "restored": files})
    else:
        output.show(_plan(plan))
        print("\n".join(files) if files is not None else "Copy the files with --to DIR.")


@app.command("rollback")
def rollback(
    job: JobArgument,
    layer: Annotated[list[str], typer.Option(help="This layer goes back; may be given repeatedly.")],
    to: Annotated[str, typer.Option(help="To what it was in this checkpoint (its id).")],
    reason: Annotated[str, typer.Option("--reason", help="Why.")] = "",
    as_json: output.JsonFlag = False,
) -> None:
    """Have a job resume with some layers as they were, and the others as they are: a new checkpoint, nothing is lost.

    A job that runs goes on as it is until it resumes, and what it saves meanwhile is newer: suspend it first.

    \b
    Examples:
      tidegate checkpoint rollback j-4k2mz7q5x3w6y2ab --layer model --to 4f1c09d27e6b...
    """
    with connect() as client, output.Progress(f"Rolling {', '.join(layer)} of {job} back"):
        made = client.rollback(job, layer, to, reason)
    if as_json:
        output.print_document(made)
    else:
        print(
            f"checkpoint {short(made['checkpoint_id'])} at step {made['step']} has {', '.join(layer)} of {short(to)}."
        )


def _carry_out(plan: dict[str, Any], tier_dir: Path | None, to: Path, progress: output.Progress) -> list[Path]:
    from tidegate.cli.commands.tiers import here  # noqa: PLC0415
    from tidegate.client.restoring import carry_out, from_tiers  # noqa: PLC0415

    copied = 0

    def on_copied(count: int) -> None:
        nonlocal copied
        copied += count
        progress.update(f"Copying: {text.size(copied)} of {text.size(plan['size_bytes'])}")

    if tier_dir is not None:
        return carry_out(plan, tier_dir, to, on_copied)
    return from_tiers(plan, here(), to, on_copied)


def _plan(plan: dict[str, Any]) -> Any:
    from rich.table import Table  # noqa: PLC0415

    title = f"checkpoint {short(plan['checkpoint_id'])} of {plan['job_id']}, step {plan['step']}, {plan['status']}"
    table = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left", title_style="")
    for name in ("LAYER", "SIZE", "PACKS", "DIGEST"):
        table.add_column(name, justify="right" if name in ("SIZE", "PACKS") else "left")
    for one in plan["layers"]:
        table.add_row(one["name"], text.size(one["size_bytes"]), str(one["pack_count"]), short(one["digest"]))
    return table


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
