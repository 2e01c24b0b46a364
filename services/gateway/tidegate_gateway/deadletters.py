"""`tidegate deadletter`: what side-effect consumers could not process, and what is to become of it.

It talks to the bus with the operator's login, as `tidegate history` does: the gateway's HTTP API carries no proof of
who asks, and to drop or repeat a side effect is the operator's to decide.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer
from tidegate.cli import exits, moments, output, text
from tidegate.cli.exits import CommandError
from tidegate_events import bus
from tidegate_events.bus import BusUnreachableError
from tidegate_events.deadletter import DeadLetter, DeadLetters, NoLetterError, nats_letters
from tidegate_events.operator_login import operator_bus
from tidegate_events.process import log_as
from tidegate_events.register.base import RegisterUnavailableError

WAIT_SECONDS_MAX = 10.0
POLL_SECONDS = 0.1
LISTED_MAX = 200
REMEDY = "Is the stack up? Try `tidegate status`; set TIDEGATE_BUS_URL, TIDEGATE_BUS_USER and TIDEGATE_BUS_PASSWORD."

T = TypeVar("T")
HomeOption = Annotated[Path | None, typer.Option("--home", help="Data directory of the local stack.")]
LetterArgument = Annotated[str, typer.Argument(metavar="CONSUMER/PLACE", help="The letter, as `ls` names it.")]
WhyOption = Annotated[str, typer.Option("--why", help="The reason, kept with the letter and in the logs.")]

deadletter = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="""Events that a service could not process and set aside; it went on. Look, mend the cause, then retry.

    A letter is named CONSUMER/SEQUENCE.INDEX: `tidegate history show SEQUENCE.INDEX` shows the event and its causes.

    [bold]Exit codes[/bold]

      0 ok   1 it failed again   2 usage   3 no stack or no bus   4 no such letter, or it is closed
    """,
)


@deadletter.callback()
def _group() -> None:
    """List, look at, retry and drop what side-effect consumers could not process."""
    log_as("deadletter", "cli")  # warnings go to standard error: standard output is for the answer


@deadletter.command("ls")
def ls(
    consumer: Annotated[str, typer.Option(help="Only letters of this consumer.")] = "",
    closed: Annotated[bool, typer.Option("--all", help="Also those that were handled or dropped.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="The newest so many.")] = LISTED_MAX,
    as_json: output.JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """List the events that were set aside, the one that changed last at the end.

    \b
    Examples:
      tidegate deadletter ls
      tidegate deadletter ls --consumer checkpoint --json | jq '.letters[].error_text'
    """

    async def ask(letters: DeadLetters) -> list[DeadLetter]:
        found = [stored.letter async for stored in letters.newer(0, consumer)]
        return [letter for letter in found if closed or letter.is_open]

    found = _run(ask, home)
    if as_json:
        output.print_document({"letters": [_document(each) for each in found[-limit:]], "total": len(found)})
    elif not found:
        output.note("No dead letters: every event was processed.")
    else:
        output.show(_table(found[-limit:]))
        if len(found) > limit:
            output.note(f"{len(found) - limit} older ones are not shown; --limit shows more.")


@deadletter.command("show")
def show(letter: LetterArgument, as_json: output.JsonFlag = False, home: HomeOption = None) -> None:
    """Show one letter: the error, the tries, and the event itself.

    Exit code 4: there is no such letter. Example: tidegate deadletter show checkpoint/48211.0
    """
    consumer, place = _parse(letter)

    async def ask(letters: DeadLetters) -> DeadLetter:
        stored = await letters.find(consumer, place)
        if stored is None:
            raise NoLetterError(f"{consumer} has no dead letter {place}")
        return stored.letter

    found = _run(ask, home)
    if as_json:
        output.print_document(_document(found))
    else:
        output.console().print(_as_text(found), markup=False, soft_wrap=True)


@deadletter.command("retry")
def retry(
    letter: LetterArgument,
    why: WhyOption = "",
    wait: Annotated[bool, typer.Option(help="Wait a while for what comes of it.")] = True,
    as_json: output.JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """Have the consumer process the event again: now, or when it is back.

    Exit code 0: it was processed, or is asked for and the consumer has not answered within 10 s. 1: it failed again.
    4: there is no such letter, or it is closed.
    Example: tidegate deadletter retry checkpoint/48211.0 --why 'the disk is back'
    """
    consumer, place = _parse(letter)

    async def ask(letters: DeadLetters) -> DeadLetter:
        asked = await letters.ask_retry(consumer, place, by=_who(), reason=why, now_ns=time.time_ns())
        return await _outcome(letters, asked) if wait else asked

    with output.Progress(f"Waiting for {consumer}"):
        found = _run(ask, home)
    if as_json:
        output.print_document(_document(found))
    elif found.state == "handled":
        output.note(f"{letter} was processed.")
    elif found.state == "retry":
        output.note(f"{letter} will be retried; {consumer} has not answered yet, and does it when it is back.")
    if found.state == "dead":
        message = f"{letter} failed again, {found.attempts} tries in all: {found.error_type}: {found.error_text}"
        raise CommandError(message, f"`tidegate deadletter show {letter}` shows the event.", exits.FAILED)


@deadletter.command("drop")
def drop(
    letter: LetterArgument,
    why: Annotated[str, typer.Option("--why", help="The reason, kept with the letter and in the logs.")],
    as_json: output.JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """Give the event up. Who dropped it and why stays on record.

    Exit code 4: there is no such letter, or it is closed.
    Example: tidegate deadletter drop checkpoint/48211.0 --why 'the job is long gone'
    """
    consumer, place = _parse(letter)
    if not why.strip():
        raise CommandError("--why is empty.", "Say why nobody needs the event any more.", exits.USAGE)

    async def ask(letters: DeadLetters) -> DeadLetter:
        return await letters.drop(consumer, place, by=_who(), reason=why, now_ns=time.time_ns())

    found = _run(ask, home)
    if as_json:
        output.print_document(_document(found))
    else:
        output.note(f"{letter} is dropped.")


async def _outcome(letters: DeadLetters, asked: DeadLetter) -> DeadLetter:
    """Return the letter when its retry ended, or as it is after WAIT_SECONDS_MAX."""
    current = asked
    try:
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while current.state == "retry":
                await asyncio.sleep(POLL_SECONDS)
                stored = await letters.find(asked.consumer, asked.place)
                if stored is None:
                    raise NoLetterError(f"the dead letter {asked.consumer}/{asked.place} was let go meanwhile")
                current = stored.letter
    except TimeoutError:
        return current
    return current


def _run(ask: Callable[[DeadLetters], Awaitable[T]], home: Path | None) -> T:
    """Return what `ask` finds on the bus; end with a message and an exit code for what a command can meet."""

    async def connected() -> T:
        client = await bus.connect(operator_bus("deadletter", home), bus.COMMAND_TRIES_MAX)
        try:
            return await ask(nats_letters(client))
        finally:
            await client.close()

    try:
        return asyncio.run(connected())
    except NoLetterError as error:
        raise CommandError(str(error), "`tidegate deadletter ls --all` lists them.", exits.NOT_FOUND) from error
    except (BusUnreachableError, RegisterUnavailableError) as error:
        raise CommandError(f"The dead letters cannot be reached: {error}.", REMEDY, exits.ENVIRONMENT) from error


def _parse(letter: str) -> tuple[str, str]:
    consumer, _, place = letter.partition("/")
    seq, _, index = place.partition(".")
    if not consumer.replace("-", "").replace("_", "").isalnum() or not (seq.isdigit() and index.isdigit()):
        accepted = "CONSUMER/SEQUENCE.INDEX is accepted, as `tidegate deadletter ls` shows it."
        raise CommandError(f"{letter!r} names no dead letter.", accepted, exits.USAGE)
    return consumer, place


def _who() -> str:
    """Return who asks, as the machine knows it."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid {os.getuid()}"


def _document(letter: DeadLetter) -> dict[str, Any]:
    event = msgspec.json.decode(letter.event)
    fields = {name: value for name, value in msgspec.structs.asdict(letter).items() if name != "event"}
    return {"letter": f"{letter.consumer}/{letter.place}", **fields, "event": event}


def _table(found: list[DeadLetter]) -> Any:
    table = output.table()
    for name in ("LETTER", "STATE", "KIND", "JOB"):
        table.add_column(name, no_wrap=True)
    table.add_column("TRIES", justify="right")
    table.add_column("SINCE", no_wrap=True)
    table.add_column("ERROR", overflow="fold")
    now_ns = time.time_ns()
    for letter in found:
        table.add_row(
            f"{letter.consumer}/{letter.place}",
            letter.state,
            letter.kind,
            text.cell(letter.job),
            str(letter.attempts),
            text.since(letter.first_at_ns, now_ns),
            output.one_line(f"{letter.error_type}: {letter.error_text}"),
        )
    return table


def _as_text(letter: DeadLetter) -> str:
    lines = [
        f"{letter.consumer}/{letter.place}  {letter.kind}  {letter.state}",
        f"  job      {text.cell(letter.job)}",
        f"  error    {letter.error_type}: {letter.error_text}",
        f"  tries    {letter.attempts}, from {moments.stamp(letter.first_at_ns)} to {moments.stamp(letter.last_at_ns)}",
    ]
    if letter.by:
        when = moments.stamp(letter.changed_at_ns)
        lines.append(f"  {letter.state:<8} {when} by {letter.by}: {text.cell(letter.reason)}")
    if letter.is_open:
        lines.append(f"  event    {msgspec.json.format(bytes(letter.event), indent=2).decode()}")
    return "\n".join(lines)
