"""`tidegate cancel`: ask for a job to end."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.cli import complete, output
from tidegate.cli.connect import connect


def cancel(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's id.", autocompletion=complete.jobs)],
    as_json: output.JsonFlag = False,
) -> None:
    """End a job, whatever it is doing. Asking again changes nothing.

    A running job is told, gets its grace period, and is then stopped. A job that ended otherwise is refused (5).

    \b
    Examples:
      tidegate cancel j-4k2mz7q5x3w6y2ab
    """
    with connect() as client, output.Progress(f"Cancelling {job}"):
        answer = client.cancel(job)
    if as_json:
        output.print_document(answer)
    else:
        done = "is cancelled" if answer["state"] == "cancelled" else f"shall end (now {answer['state']})"
        print(f"{answer['job_id']} {done}")
