"""`tidegate job set`: another priority or time limit, from now on."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.cli import exits, moments, output, text
from tidegate.cli.commands.acts import JobArgument, Reason, show
from tidegate.cli.connect import connect
from tidegate.cli.exits import CommandError

SETTINGS = ("priority", "limit")


def job_set(
    job: JobArgument,
    setting: Annotated[
        str, typer.Argument(metavar="priority|limit", help="What to set.", autocompletion=lambda: list(SETTINGS))
    ],
    value: Annotated[str, typer.Argument(metavar="VALUE", help="A number; or a span such as 6h, or none.")],
    reason: Reason = "",
    as_json: output.JsonFlag = False,
) -> None:
    """Change a job's priority or time limit, also while it runs.

    A priority above what the tenant may use is refused (5).

    \b
    Examples:
      tidegate job set j-4k2mz7q5x3w6y2ab priority 40
      tidegate job set j-4k2mz7q5x3w6y2ab limit 6h
      tidegate job set j-4k2mz7q5x3w6y2ab limit none
    """
    if setting == "priority":
        priority = _number(value)
        with connect() as client, output.Progress(f"Asking for priority {priority}"):
            answer = client.set_priority(job, priority, reason)
        show(answer, f"has priority {answer['priority']}", as_json)
    elif setting == "limit":
        seconds = None if value == "none" else moments.seconds(value, "limit")
        with connect() as client, output.Progress(f"Asking for a limit of {value}"):
            answer = client.set_limit(job, seconds, reason)
        words = "has no time limit" if seconds is None else f"may run {text.span(seconds)} in all"
        show(answer, words, as_json)
    else:
        raise CommandError(f"{setting!r} cannot be set.", f"Accepted are {' and '.join(SETTINGS)}.", exits.USAGE)


def _number(value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= 9):
        raise CommandError(f"The priority {value!r} is no whole number.", "Accepted is 0 or more.", exits.USAGE)
    return int(value)
