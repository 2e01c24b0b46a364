"""`tidegate hold`, `release`, `suspend`, `resume`, `requeue`: what people ask of a job that has not ended."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tidegate.cli import complete, output
from tidegate.cli.connect import connect

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.", autocompletion=complete.jobs)]
Reason = Annotated[str, typer.Option("--reason", help="Why; it is kept in the job's history.")]
NeededReason = Annotated[str, typer.Option("--reason", help="Why (needed); it is kept in the job's history.")]


def hold(job: JobArgument, reason: Reason = "", as_json: output.JsonFlag = False) -> None:
    """Keep a job from being placed. One that runs goes on, and is held once it is back in the queue.

    \b
    Examples:
      tidegate hold j-4k2mz7q5x3w6y2ab --reason "wrong data set"
    """
    with connect() as client, output.Progress(f"Holding {job}"):
        answer = client.hold(job, reason)
    show(
        answer, "is held" if answer["state"] in ("pending", "suspended") else "goes on, and is held afterwards", as_json
    )


def release(job: JobArgument, reason: Reason = "", as_json: output.JsonFlag = False) -> None:
    """Let a held job be placed again. A job that is not held is refused (5).

    \b
    Examples:
      tidegate release j-4k2mz7q5x3w6y2ab
    """
    with connect() as client, output.Progress(f"Releasing {job}"):
        answer = client.release(job, reason)
    show(answer, "is no longer held", as_json)


def suspend(job: JobArgument, reason: NeededReason, as_json: output.JsonFlag = False) -> None:
    """Have a running job save a checkpoint and leave, and hold it. A job that waits is refused (5): hold it.

    \b
    Examples:
      tidegate suspend j-4k2mz7q5x3w6y2ab --reason "the demo needs the GPUs"
    """
    with connect() as client, output.Progress(f"Suspending {job}"):
        answer = client.suspend(job, reason)
    show(answer, "is held" if answer["held"] else "shall save and leave, and is held then", as_json)


def resume(job: JobArgument, reason: Reason = "", as_json: output.JsonFlag = False) -> None:
    """Let a held or suspended job run again, from its checkpoint where it has one. Any other is refused (5).

    \b
    Examples:
      tidegate resume j-4k2mz7q5x3w6y2ab
    """
    with connect() as client, output.Progress(f"Resuming {job}"):
        answer = client.resume(job, reason)
    show(answer, "may run again", as_json)


def requeue(job: JobArgument, reason: NeededReason, as_json: output.JsonFlag = False) -> None:
    """Have a running job save a checkpoint, leave, and wait for another attempt. A job that waits is refused (5).

    \b
    Examples:
      tidegate requeue j-4k2mz7q5x3w6y2ab --reason "stuck on a slow disk"
    """
    with connect() as client, output.Progress(f"Requeueing {job}"):
        answer = client.requeue(job, reason)
    show(answer, "shall save and leave, and waits for another attempt then", as_json)


def show(answer: dict[str, Any], words: str, as_json: bool) -> None:
    """Print what is so now."""
    if as_json:
        output.print_document(answer)
    else:
        same = "" if answer["changed"] else " (nothing changed)"
        print(f"{answer['job_id']} {words}; now {answer['state']}{same}")
