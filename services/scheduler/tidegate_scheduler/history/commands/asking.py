"""How every command of `tidegate history` is asked: common options, where it reads, and what its failures become."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from tidegate.cli import exits, output
from tidegate.cli.exits import CommandError
from tidegate.errors import TidegateError
from tidegate_events.bus import BusUnreachableError
from tidegate_events.frame import UnreadableFrameError
from tidegate_events.journal.archive import ArchiveDamagedError
from tidegate_events.journal.base import JournalError
from tidegate_events.operator_login import home_of, operator_bus
from typer.core import TyperGroup

from tidegate_scheduler.history.errors import HistoryMissingError
from tidegate_scheduler.history.importing import ARCHIVE_IN_HOME
from tidegate_scheduler.history.moment import Moment, parse
from tidegate_scheduler.history.point import Told, last_time
from tidegate_scheduler.history.source import FileSource, Source, open_bus, open_file
from tidegate_scheduler.policy.registry import UnknownPolicyError
from tidegate_scheduler.snapshot import SnapshotError

ARCHIVE_VARIABLE = "TIDEGATE_JOURNAL_ARCHIVE_DIR"
T = TypeVar("T")

FileOption = Annotated[
    Path | None,
    typer.Option("--file", metavar="FILE", help="Read this file, not the journal: needs no stack and no network."),
]
HomeOption = Annotated[Path | None, typer.Option("--home", help="Data directory of the local stack.")]
Question = Callable[[Source, Told], Awaitable[T]]


class HistoryGroup(TyperGroup):
    """The group of commands; what they are refused becomes a message, a remedy and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return self._invoke(ctx)
        except TidegateError as error:
            output.show_error(error, as_json=output.wants_json(ctx))
            raise typer.Exit(exits.exit_code(error)) from error

    def _invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BusUnreachableError as error:
            remedy = "Is the stack up? See `tidegate status`. Another one: --home or TIDEGATE_BUS_URL. A file: --file."
            raise HistoryMissingError(f"The journal cannot be reached: {error}.", remedy) from error
        except ArchiveDamagedError as error:
            remedy = "What stands before that place is whole; nothing of the file was used."
            raise CommandError(str(error), remedy, exits.FAILED) from error
        except JournalError as error:
            raise HistoryMissingError(f"The journal cannot be read: {error}.", "See `tidegate status`.") from error
        except (SnapshotError, UnknownPolicyError, UnreadableFrameError) as error:
            raise HistoryMissingError(
                f"{error}.", "Use the version of Tidegate that wrote it, or a newer one."
            ) from error


def ask(file: Path | None, home: Path | None, doing: str, question: Question[T]) -> T:
    """Open history where the options say and return the answer; whoever waits long is told how far it is."""

    async def answer(told: Told) -> T:
        async with _opened(file, home) as source:
            return await question(source, told)

    with output.Progress(doing) as progress:
        return asyncio.run(answer(progress.update))


async def moment(source: Source, text: str | None, option: str) -> Moment:
    """Return the moment in `text` (history's end where there is none), counted back from now, or from a file's end."""
    if text is None:
        return Moment()
    given = parse(text, option)
    if not given.back_ns:
        return given.moment
    if isinstance(source, FileSource):
        return given.since(await last_time(source, source.end))
    return given.since(time.time_ns())


@asynccontextmanager
async def _opened(file: Path | None, home: Path | None) -> AsyncIterator[Source]:
    if file is not None:
        yield open_file(file)
        return
    async with open_bus(operator_bus("history", home), _archive(home)) as source:
        yield source


def _archive(home: Path | None) -> Path:
    named = os.environ.get(ARCHIVE_VARIABLE)
    return Path(named) if named and home is None else home_of(home) / ARCHIVE_IN_HOME
