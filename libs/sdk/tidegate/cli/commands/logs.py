"""`tidegate logs`: what a job's processes wrote, as it is, also while it grows, and after they are gone."""

from __future__ import annotations

import codecs
import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli import complete, output
from tidegate.cli.connect import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidegate.client import Client, LogChunk, LogSelection


def logs(  # noqa: PLR0917
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's id.", autocompletion=complete.jobs)],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ended.")] = False,
    component: Annotated[str | None, typer.Option(help="Of this component; by default the main one.")] = None,
    replica: Annotated[int, typer.Option(min=0, help="Of this replica of the component.")] = 0,
    rank: Annotated[int, typer.Option(min=0, help="Of this member of a gang.")] = 0,
    attempt: Annotated[int | None, typer.Option(min=1, help="Of this attempt; by default the newest.")] = None,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, help="Only the last so many lines.")] = None,
    as_json: output.JsonFlag = False,
) -> None:
    """Print what a job wrote to stdout and stderr, also after its sandbox is gone.

    With -f the output goes on over suspensions and new attempts. Each log is bounded: its beginning and its end are
    kept, and a line on stderr says where how much is missing. With --json -f each piece is one JSON document on a line
    of its own.

    \b
    Examples:
      tidegate logs j-4k2mz7q5x3w6y2ab
      tidegate logs -f j-4k2mz7q5x3w6y2ab
      tidegate logs j-4k2mz7q5x3w6y2ab --tail 20
      tidegate logs j-4k2mz7q5x3w6y2ab --component simulator --replica 2 --attempt 1
    """
    from tidegate.client import LogSelection  # noqa: PLC0415

    selection = LogSelection(component, replica, rank, attempt, tail)
    with connect() as client:
        chunks = client.logs(job, selection, follow=follow)
        if as_json and follow:
            _print_lines(chunks)
        elif as_json:
            _print_whole(job, chunks)
        elif not _print(chunks):
            _say_empty(client, job, selection)


def _print(chunks: Iterator[LogChunk]) -> bool:
    """Print the pieces; say whether there were any."""
    attempt = None
    for chunk in chunks:
        if attempt not in (None, chunk.attempt):
            output.note(f"--- attempt {chunk.attempt} ---")
        if chunk.missing_bytes:
            output.note(f"--- {chunk.missing_bytes} bytes are missing here: the log is bounded ---")
        attempt = chunk.attempt
        # The bytes as the job wrote them: a piece may end within a character.
        sys.stdout.buffer.write(chunk.data)
        sys.stdout.buffer.flush()
    return attempt is not None


def _say_empty(client: Client, job: str, selection: LogSelection) -> None:
    """Say that there is nothing, and where there might be something."""
    if selection.tail_lines == 0:
        return
    detail = client.job(job)
    names = [component["name"] for component in detail["spec"]["components"]]
    others = [name for name in names if name != selection.component]
    whose = selection.component or "its main component"
    where = f" It has the components {', '.join(names)}; name one with --component." if len(others) > 1 else ""
    output.note(f"{job}: {whose} wrote nothing in attempt {selection.attempt or detail['attempt']}.{where}")


def _print_lines(chunks: Iterator[LogChunk]) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for chunk in chunks:
        document = {**_named(chunk), "offset": chunk.offset, "text": decoder.decode(chunk.data)}
        sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")
        sys.stdout.flush()


def _print_whole(job: str, chunks: Iterator[LogChunk]) -> None:
    """Print the log as one document; where bytes are missing, the text has a line that says so."""
    found = list(chunks)
    parts: list[bytes] = []
    for chunk in found:
        if chunk.missing_bytes:
            parts.append(f"\n[tidegate: {chunk.missing_bytes} bytes of output were not kept]\n".encode())
        parts.append(chunk.data)
    document: dict[str, Any] = {"job_id": job, "text": b"".join(parts).decode("utf-8", "replace")}
    if found:
        document.update(_named(found[0]))
        document["missing_bytes"] = sum(chunk.missing_bytes for chunk in found)
        document["truncated"] = document["missing_bytes"] > 0
    output.print_document(document)


def _named(chunk: LogChunk) -> dict[str, Any]:
    return {
        "component": chunk.component,
        "replica": chunk.replica,
        "rank": chunk.rank,
        "attempt": chunk.attempt,
        "truncated": chunk.truncated,
        "missing_bytes": chunk.missing_bytes,
    }
