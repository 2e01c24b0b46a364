"""What an operator does with projections: `tidegate projections ...`, and `tidegate-projector migrate|rebuild|status`.

The first asks the running projector over the bus and needs no right to write; the second does it in its own process,
with the projector's own environment.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import nats.errors
import typer
from rich.console import Console
from tidegate_events import bus
from tidegate_events.bus import BusSettings, BusUnreachableError
from tidegate_events.journal.base import JournalError
from tidegate_events.operator_login import operator_bus, stack_logins
from tidegate_events.process import log_as

from tidegate_gateway.database.connection import Database, DatabaseAwayError
from tidegate_gateway.database.migrations import MigrationError
from tidegate_gateway.database.starting import OtherJournalError
from tidegate_gateway.database.url import DatabaseUrlError, database_url
from tidegate_gateway.projector import shell
from tidegate_gateway.projector.asks import PROGRESS_SUBJECT, REBUILD_SUBJECT, Answer
from tidegate_gateway.projector.rebuild import RebuildRunsError
from tidegate_gateway.projector.settings import ProjectorSettingsError, Settings, from_environment
from tidegate_gateway.projector.status import as_text, read_status

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
ASK_SECONDS_MAX = 5.0
POLL_SECONDS = 0.5

HomeOption = Annotated[Path | None, typer.Option("--home", help="Data directory of the local stack.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]

projections = typer.Typer(help="Look at the read models, or project history again.", no_args_is_help=True)
projector = typer.Typer(help="Projects the journal into PostgreSQL.", no_args_is_help=True, add_completion=False)
errors = Console(stderr=True)
T = TypeVar("T")


class _NotReachedError(Exception):
    """What the command needs is not there; says what to do."""


@projections.callback()
def _projections() -> None:
    """Look at the read models, or project history again."""
    log_as("projections", "cli")  # warnings go to standard error: standard output is for the answer


@projector.callback()
def _projector() -> None:
    """Projects the journal into PostgreSQL; without a command (or with `run`) it serves."""
    log_as("projector", "cli")


@projections.command("status")
def projections_status(json: JsonOption = False, home: HomeOption = None) -> None:
    """Show every generation of the read models, and how far it is behind the journal.

    Exit code 3: the database cannot be reached. Example: tidegate projections status --json
    """
    _run(_show_status(lambda: _database_url(home), json))


@projections.command("rebuild")
def projections_rebuild(
    json: JsonOption = False,
    home: HomeOption = None,
    wait: Annotated[bool, typer.Option(help="Return when the new tables are the ones that are read.")] = True,
) -> None:
    """Project history again beside the tables in use, and switch over: readers notice nothing.

    Exit code 1: it failed; the old tables stay. 3: no projector answers. Example: tidegate projections rebuild
    """
    answer = _run(_ask_rebuild(_found(lambda: operator_bus("projections", home)), wait))
    if json:
        typer.echo(msgspec.json.encode(answer).decode())
    elif answer.rebuilt is not None:
        typer.echo(f"generation {answer.rebuilt.generation} is active, at frame {answer.rebuilt.seq}")
    elif answer.error is None:
        typer.echo("a rebuild runs; see `tidegate projections status`")
    if answer.error is not None:
        typer.echo(f"not rebuilt, the old tables stay: {answer.error}", err=True)
        raise typer.Exit(EXIT_FAILED)


@projector.command("migrate")
def migrate_command() -> None:
    """Apply the migrations that are pending, and say which."""
    applied = _run(shell.migrate(_own_settings().database_url))
    typer.echo("\n".join(applied) if applied else "nothing to apply")


@projector.command("rebuild")
def rebuild_command() -> None:
    """Project history again from this process; a rebuild that was cut off goes on where it stood."""
    rebuilt = _run(shell.rebuild(_own_settings()))
    typer.echo(f"generation {rebuilt.generation} is active, at frame {rebuilt.seq}")


@projector.command("status")
def status_command(json: JsonOption = False) -> None:
    """Show every generation, and how far it is behind the journal."""
    _run(_show_status(lambda: _own_settings().database_url, json))


def _run(work: Any) -> Any:
    """Run a coroutine; end with a line and an exit code for what a command can meet."""
    try:
        return asyncio.run(work)
    except* DatabaseUrlError as group:
        _end(group, EXIT_USAGE)
    except* (DatabaseAwayError, BusUnreachableError, _NotReachedError, JournalError, nats.errors.Error) as group:
        _end(group, EXIT_UNREACHABLE)
    except* (MigrationError, OtherJournalError, RebuildRunsError) as group:
        _end(group, EXIT_FAILED)


def _end(group: BaseExceptionGroup[BaseException], code: int) -> None:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    typer.echo(str(error), err=True)
    raise SystemExit(code)


def _own_settings() -> Settings:
    try:
        return from_environment(os.environ)
    except ProjectorSettingsError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(EXIT_USAGE) from error


async def _show_status(url: Any, json: bool) -> None:
    database = Database(url(), name="tidegate-status")
    await database.open()
    try:
        async with database.connection() as connection:
            status = await read_status(connection)
    finally:
        await database.close()
    typer.echo(msgspec.json.encode(status).decode() if json else as_text(status))


async def _ask_rebuild(settings: BusSettings, wait: bool) -> Answer:
    client = await bus.connect(settings)
    try:
        answer = await _ask(client, REBUILD_SUBJECT)
        if wait and answer.running:
            with errors.status("projecting history again; the tables in use stay until it is done"):
                while answer.running:
                    await asyncio.sleep(POLL_SECONDS)
                    answer = await _ask(client, PROGRESS_SUBJECT)
        return answer
    finally:
        await client.close()


async def _ask(client: Any, subject: str) -> Answer:
    try:
        answer = await client.request(subject, b"", timeout=ASK_SECONDS_MAX)
    except (nats.errors.Error, TimeoutError) as error:
        raise _NotReachedError(
            "no projector answers on the bus. Is the stack up? Try `tidegate status`. "
            "Where it does not run, `tidegate-projector rebuild` does it without one."
        ) from error
    return msgspec.json.decode(answer.data, type=Answer)


def _found(find: Callable[[], T]) -> T:
    """Return what is looked up in the stack's record; end with a message where there is no stack."""
    try:
        return find()
    except BusUnreachableError as error:
        typer.echo(f"{error}; set --home, or TIDEGATE_BUS_URL and TIDEGATE_DATABASE_URL", err=True)
        raise typer.Exit(EXIT_UNREACHABLE) from error


def _database_url(home: Path | None) -> str:
    """Return where PostgreSQL is: TIDEGATE_DATABASE_URL first, else the local stack's record."""
    url = database_url(os.environ) if home is None else None
    if url is None:
        url = _found(lambda: stack_logins(home)).database_url
    if not url:
        raise _NotReachedError("the stack has no database; set TIDEGATE_DATABASE_URL")
    return url
