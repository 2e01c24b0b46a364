"""The `history` commands: what an operator asks of the journal. Plugged into `tidegate` by an entry point."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from tidegate.cli.output import Progress
from tidegate_events import bus
from tidegate_events.bus import BusSettings, BusUnreachableError
from tidegate_events.journal.base import JournalError, Recorded
from tidegate_events.journal.nats import NatsJournal
from tidegate_events.process import bus_settings, log_as

from tidegate_scheduler.history import Verification, verify

EXIT_DIFFERENT = 1
EXIT_UNREACHABLE = 3
FRAMES_PER_WORD = 100

history = typer.Typer(help="Look into the journal and prove it.", no_args_is_help=True)


class _Stack(msgspec.Struct, frozen=True):
    """What the local stack's record says of its bus."""

    bus_url: str
    bus_user: str = ""
    bus_password: str = ""


@history.callback()
def _group() -> None:
    """Look into the journal and prove it."""
    log_as("history", "cli")  # warnings go to standard error: standard output is for the answer


@history.command("verify")
def verify_command(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    home: Annotated[Path | None, typer.Option(help="Data directory of the local stack.")] = None,
) -> None:
    """Decide every recorded pass again and compare it with the journal, bit for bit.

    Exit code 0: all equal. 1: a pass came out otherwise; the first one is shown. 3: no journal can be reached.

    \b
    Examples:
      tidegate history verify
      tidegate history verify --json | jq .decisions_verified
    """
    try:
        with Progress("Reading the journal") as progress:
            report = asyncio.run(_verify(_bus_settings(home), progress))
    except (BusUnreachableError, JournalError) as error:
        typer.echo(f"cannot read the journal: {error}. Is the stack up? Try `tidegate status`.", err=True)
        raise typer.Exit(EXIT_UNREACHABLE) from error
    if json:
        typer.echo(msgspec.json.encode(report).decode())
    else:
        typer.echo(_as_text(report))
    if not report.ok:
        raise typer.Exit(EXIT_DIFFERENT)


def _bus_settings(home: Path | None) -> BusSettings:
    """Return where the journal is: TIDEGATE_BUS_* variables first, else the local stack's record."""
    if home is None and "TIDEGATE_BUS_URL" in os.environ:
        return bus_settings("history")
    default = os.environ.get("TIDEGATE_HOME") or Path.home() / ".local" / "share" / "tidegate" / "local"
    path = (home or Path(default)) / "stack.json"
    try:
        stack = msgspec.json.decode(path.read_bytes(), type=_Stack)
    except (OSError, msgspec.MsgspecError) as error:
        raise BusUnreachableError(
            f"no local stack at {path.parent} ({error}); set TIDEGATE_BUS_URL or --home"
        ) from error
    return BusSettings(url=stack.bus_url, user=stack.bus_user, password=stack.bus_password, name="history")


async def _verify(settings: BusSettings, progress: Progress) -> Verification:
    client = await bus.connect(settings)
    try:
        journal = NatsJournal(client)
        end = await journal.end()
        return await verify(_told(journal.read(0, end), end, progress))
    finally:
        await client.close()


async def _told(frames: AsyncGenerator[Recorded, None], end: int, progress: Progress) -> AsyncGenerator[Recorded, None]:
    """Pass the frames on, and say how far it is now and then."""
    async with aclosing(frames):
        async for recorded in frames:
            if recorded.seq % FRAMES_PER_WORD == 0:
                progress.update(f"Deciding again: frame {recorded.seq} of {end}")
            yield recorded


def _as_text(report: Verification) -> str:
    counted = f"{report.frames} frames, {report.events} events, {report.passes} passes"
    if report.difference is None:
        return (
            f"history verified: {counted}; {report.decisions_verified} of {report.decisions} decisions recomputed and "
            f"equal, bit for bit\nstate {report.state_digest}"
        )
    difference = report.difference
    return (
        f"HISTORY DIFFERS at sequence {difference.seq} (decided on the state after {difference.at_seq})\n"
        f"  recorded   {difference.recorded}\n  recomputed {difference.recomputed}\n"
        f"{report.decisions_verified} decisions before it are equal ({counted} read)"
    )
