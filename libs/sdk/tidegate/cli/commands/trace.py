"""`tidegate trace` and `tidegate timeline`: where a job's time went, as a tree, as text, or as a file for Perfetto."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli import complete, exits, output, perfetto, spans, timeline
from tidegate.cli import trace as tree
from tidegate.cli.connect import connect

if TYPE_CHECKING:
    from tidegate.client import Client

WHOLE_SECONDS_MAX = 5.0
"""How long a trace whose job has ended is waited for: its last spans are written a moment after the end."""
POLL_SECONDS = 0.25
ENDED_STATES = frozenset({"completed", "failed", "cancelled", "rejected"})

Job = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.", autocompletion=complete.jobs)]


def trace(
    job: Job,
    everything: Annotated[bool, typer.Option("--all", help="Show every span; sum no routine up.")] = False,
    as_json: output.JsonFlag = False,
) -> None:
    """Show a job's trace as a tree: waits, attempts, images, sandboxes, phases, checkpoints, preemptions.

    A span is there once it has ended; what a running job does now is in `tidegate job`.

    \b
    Examples:
      tidegate trace j-4k2mz7q5x3w6y2ab
      tidegate trace j-4k2mz7q5x3w6y2ab --all
      tidegate trace j-4k2mz7q5x3w6y2ab --json | jq '.result.resourceSpans[].scopeSpans[].spans[].name'
    """
    with connect() as client, output.Progress(f"Asking for the trace of {job}"):
        detail, document = _ask(client, job)
    if as_json:
        output.print_document(document)
        return
    found = spans.read(document)
    output.show(f"trace {detail['trace_id']} of {job} ({detail['name']}), {len(found)} spans", "")
    output.show(tree.render(found, everything=everything))


def show_timeline(
    job: Job,
    file: Annotated[
        str | None,
        typer.Option("--perfetto", metavar="FILE", help="Write a file for https://ui.perfetto.dev; - is stdout."),
    ] = None,
    as_json: output.JsonFlag = False,
) -> None:
    """Show a job's timeline, or write it as a file that Perfetto and chrome://tracing open.

    \b
    Examples:
      tidegate timeline j-4k2mz7q5x3w6y2ab
      tidegate timeline j-4k2mz7q5x3w6y2ab --perfetto job.json
      tidegate timeline j-4k2mz7q5x3w6y2ab --perfetto - | gzip > job.json.gz
    """
    if file is None:
        with connect() as client, output.Progress(f"Asking for {job}"):
            detail = client.job(job)
        if as_json:
            output.print_document(detail["timeline"])
        else:
            output.show(timeline.render(detail, everything=True, now_ns=time.time_ns()))
        return
    with connect() as client, output.Progress(f"Asking for the trace of {job}"):
        detail, document = _ask(client, job)
    found = spans.read(document)
    content = json.dumps(perfetto.convert(found, f"{detail['name']} ({job})"), ensure_ascii=False)
    if file == "-":
        sys.stdout.write(content + "\n")
        return
    _write(Path(file), content)
    if as_json:
        output.print_document({"file": file, "spans": len(found), "trace_id": detail["trace_id"]})
    else:
        output.note(f"{len(found)} spans written to {file}; open it at https://ui.perfetto.dev")


def _ask(client: Client, job: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the job and its trace, with the end of an ended one, which may come a moment later."""
    from tidegate.client import NotFound  # noqa: PLC0415

    detail = client.job(job)
    deadline = time.monotonic() + WHOLE_SECONDS_MAX
    while True:
        document: dict[str, Any] | None = None
        try:
            document = client.trace(detail["trace_id"])
        except NotFound:
            if time.monotonic() >= deadline:
                raise
        if document is not None:
            ended = any(span.name == "end" for span in spans.read(document))
            if ended or detail["state"] not in ENDED_STATES or time.monotonic() >= deadline:
                return detail, document
        time.sleep(POLL_SECONDS)


def _write(path: Path, content: str) -> None:
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise exits.CommandError(
            f"{path} cannot be written: {error.strerror}.",
            "Name a file in a directory that exists and is yours; - is stdout.",
            exits.ENVIRONMENT,
        ) from error
