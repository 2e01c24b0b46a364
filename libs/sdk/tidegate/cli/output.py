"""What commands write: one JSON document or tables on stdout, progress and errors on stderr.

Rich is imported on first use, so that `--help` and `--json` stay quick.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli import exits
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress as Bar
    from rich.status import Status
    from rich.table import Table
    from rich.text import Text

JSON_KEY = "tidegate.json"
PIPE_WIDTH_CHARS = 400
"""How wide tables may get where nobody looks at them: a program that reads them wants whole cells."""
QUIET_SECONDS = 2.0
"""Where no terminal shows a spinner, the first line of progress comes after this time."""
REPEAT_SECONDS = 10.0


def _note_json(ctx: typer.Context, value: bool) -> bool:
    if value:
        ctx.find_root().meta[JSON_KEY] = True
    return value


JsonFlag = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document and nothing else.", callback=_note_json, is_eager=True),
]


def wants_json(ctx: Any) -> bool:
    """Say whether the command was asked for JSON; `ctx` is any context of the invocation."""
    return bool(ctx.find_root().meta.get(JSON_KEY, False))


def print_document(document: Any) -> None:
    """Write one JSON document: on one line, or indented where a person looks."""
    indent = 2 if sys.stdout.isatty() else None
    sys.stdout.write(json.dumps(document, ensure_ascii=False, indent=indent) + "\n")


def console(*, stderr: bool = False) -> Console:
    """Return a console that keeps whole cells in pipes and tells us when its reader went away."""
    from rich.console import Console  # noqa: PLC0415

    class PipeAwareConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    made = PipeAwareConsole(stderr=stderr, highlight=False)
    if not made.is_terminal:
        made = PipeAwareConsole(stderr=stderr, highlight=False, width=PIPE_WIDTH_CHARS)
    return made


def table() -> Table:
    """Return an empty table in the style of all of them: no lines, bold headings."""
    from rich.table import Table  # noqa: PLC0415

    return Table(box=None, pad_edge=False, header_style="bold")


def one_line(text: str) -> Text:
    """Return a cell that gives room to others first, and is cut rather than wrapped."""
    from rich.text import Text  # noqa: PLC0415

    return Text(text, no_wrap=True, overflow="ellipsis")


def show(*renderables: RenderableType) -> None:
    """Print for people on stdout."""
    out = console()
    for renderable in renderables:
        out.print(renderable)


def note(text: str) -> None:
    """Say something beside the result, on stderr."""
    print(text, file=sys.stderr, flush=True)


def show_error(error: TidegateError, *, as_json: bool) -> None:
    """Print what went wrong and what to do about it."""
    document = exits.described(error)
    if as_json:
        print_document(document)
        return
    problems = document.get("problems")
    if problems:
        note("tidegate: the gateway refused the request; nothing was taken.")
        for problem in problems:
            note(f"  {problem['path']}: {problem['problem']}")
            note(f"      accepted: {problem['accepted']}")
        return
    note(f"tidegate: {document['message']}")
    if document.get("remedy"):
        note(f"  {document['remedy']}")


def _bar() -> Bar:
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeRemainingColumn  # noqa: PLC0415
    from rich.progress import Progress as Bar  # noqa: PLC0415

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Bar(*columns, TimeRemainingColumn(), console=console(stderr=True), transient=True)


class Progress:
    """Says what a slow command is doing: a spinner on a terminal, else a line on stderr after 2 s and now and then.

    Where it is known how much there is to do, a bar stands beside the spinner, and the line says how much is done.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._status: Status | None = None
        self._bar: Bar | None = None
        self._next_line = time.monotonic() + QUIET_SECONDS
        self._first_line = threading.Timer(QUIET_SECONDS, self._say)
        self._first_line.daemon = True

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            self._status = console(stderr=True).status(self._text)
            self._status.start()
        else:
            self._first_line.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._first_line.cancel()
        if self._bar is not None:
            self._bar.stop()
        if self._status is not None:
            self._status.stop()

    def update(self, text: str, done: int = 0, total: int = 0, *, at_once: bool = False) -> None:
        """Show another text, and how much is done of how much, if that is known; `at_once`: worth a line in a log."""
        self._text = f"{text}: {done} of {total}" if total else text
        if self._status is not None:
            self._show(text, done, total)
        elif at_once or time.monotonic() >= self._next_line:
            self._say()

    def _show(self, text: str, done: int, total: int) -> None:
        """Show a bar where there is a total, else the spinner: one of the two at a time."""
        assert self._status is not None, "a terminal has a spinner from the beginning"
        if not total:
            if self._bar is not None:
                self._bar.stop()
                self._bar = None
                self._status.start()
            self._status.update(text)
            return
        if self._bar is None:
            self._status.stop()
            self._bar = _bar()
            self._bar.add_task(text, total=total)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], description=text, completed=done, total=total)

    def _say(self) -> None:
        self._first_line.cancel()
        self._next_line = time.monotonic() + REPEAT_SECONDS
        note(self._text)
