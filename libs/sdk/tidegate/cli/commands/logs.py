"""`tidegate logs`: what a job's processes wrote, as it is, also while it grows."""

from __future__ import annotations

import codecs
import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli import output
from tidegate.cli.connect import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidegate.client import LogChunk


def logs(  # noqa: PLR0917
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ended.")] = False,
    component: Annotated[str | None, typer.Option(help="Of this component; by default the main one.")] = None,
    replica: Annotated[int, typer.Option(min=0, help="Of this replica of the component.")] = 0,
    rank: Annotated[int, typer.Option(min=0, help="Of this member of a gang.")] = 0,
    attempt: Annotated[int | None, typer.Option(min=1, help="Of this attempt; by default the newest.")] = None,
    as_json: output.JsonFlag = False,
) -> None:
    """Print a job's output.

    With -f the output goes on over suspensions and new attempts. With --json -f each piece is one JSON document on a
    line of its own.

    \b
    Examples:
      tidegate logs j-4k2mz7q5x3w6y2ab
      tidegate logs -f j-4k2mz7q5x3w6y2ab
      tidegate logs j-4k2mz7q5x3w6y2ab --component simulator --replica 2 --attempt 1
    """
    from tidegate.client import LogSelection  # noqa: PLC0415

    with connect() as client:
        chunks = client.logs(job, LogSelection(component, replica, rank, attempt), follow=follow)
        if not as_json:
            _print(chunks)
        elif follow:
            _print_lines(chunks)
        else:
            _print_whole(job, chunks)


def _print(chunks: Iterator[LogChunk]) -> None:
    attempt = None
    for chunk in chunks:
        if attempt not in (None, chunk.attempt):
            output.note(f"--- attempt {chunk.attempt} ---")
        if chunk.truncated and attempt != chunk.attempt:
            output.note("--- the beginning was dropped: the log is bounded ---")
        attempt = chunk.attempt
        # The bytes as the job wrote them: a piece may end within a character.
        sys.stdout.buffer.write(chunk.data)
        sys.stdout.buffer.flush()


def _print_lines(chunks: Iterator[LogChunk]) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for chunk in chunks:
        document = {**_named(chunk), "offset": chunk.offset, "text": decoder.decode(chunk.data)}
        sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")
        sys.stdout.flush()


def _print_whole(job: str, chunks: Iterator[LogChunk]) -> None:
    found = list(chunks)
    document: dict[str, Any] = {"job_id": job, "text": b"".join(one.data for one in found).decode("utf-8", "replace")}
    if found:
        document.update(_named(found[0]))
    output.print_document(document)


def _named(chunk: LogChunk) -> dict[str, Any]:
    return {
        "component": chunk.component,
        "replica": chunk.replica,
        "rank": chunk.rank,
        "attempt": chunk.attempt,
        "truncated": chunk.truncated,
    }
