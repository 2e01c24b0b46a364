"""`tidegate history verify`: decide every recorded pass again, and show the first one that comes out otherwise."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

import msgspec
import typer
from tidegate.cli import exits, moments, output
from tidegate_events.journal.archive import inspect
from tidegate_events.journal.base import Recorded

from tidegate_scheduler.history.commands.asking import FileOption, HomeOption, ask, moment
from tidegate_scheduler.history.errors import NotInHistoryError
from tidegate_scheduler.history.listing import Document, story
from tidegate_scheduler.history.moment import Moment
from tidegate_scheduler.history.point import FRAMES_PER_WORD, Told, provable_start, reach
from tidegate_scheduler.history.source import FileSource, Source
from tidegate_scheduler.history.verification import Difference, Verification, verify
from tidegate_scheduler.version import CORE_VERSION

STORY_SHOWN_MAX = 20


def verify_command(
    begin: Annotated[str | None, typer.Option("--from", metavar="WHEN", help="Only passes from then on.")] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="WHEN", help="Only passes up to then.")] = None,
    file: FileOption = None,
    home: HomeOption = None,
    as_json: output.JsonFlag = False,
) -> None:
    """Decide every recorded pass again and compare it with the journal, bit for bit.

    With --from it starts at the newest snapshot before that. A redacted file is compared without what was taken out of
    it (state digests and free text), and the answer says so. The first difference is shown with both sides, what it was
    decided on, and the story of its job.

    Exit code 0: all equal, or no pass was decided there, which it says. 1: a pass came out otherwise, or a file is
    damaged (the place is named). 3: no journal or file can be read, or it needs another version of Tidegate.
    4: --from or --to is not in this history, or --to lies before --from.

    \b
    Examples:
      tidegate history verify
      tidegate history verify --from -1h
      tidegate history verify --from 40000 --to 48211
      tidegate history verify --file incident.tgj
      tidegate history verify --json | jq .decisions_verified
    """

    async def question(source: Source, told: Told) -> Verification:
        first, last = await moment(source, begin, "--from"), await moment(source, end, "--to")
        return await prove(source, first, last, told)

    report = ask(file, home, "Reading the journal", question)
    if as_json:
        output.print_document(msgspec.to_builtins(report))
    else:
        typer.echo(as_text(report))
    if not report.ok:
        raise typer.Exit(exits.FAILED)


async def prove(source: Source, begin: Moment, end: Moment, told: Told) -> Verification:
    """Verify the passes of `source` from `begin` to `end`, and tell the story of the job that differs.

    Of a file every byte is proved before. Raises ArchiveDamagedError, NotInHistoryError.
    """
    if isinstance(source, FileSource):
        told(f"Proving {source.path}")
        inspect(source.path)
    last = await _sequence(source, end, source.end, told)
    first = await _sequence(source, begin, source.first, told)
    if begin.at_ns is not None:
        first += 1
    backwards = last < first and begin.at_ns is None and (begin, end) != (Moment(), Moment())
    if backwards or not source.first - 1 <= min(first, last) or last < first - 1 or max(first - 1, last) > source.end:
        raise NotInHistoryError(
            f"From {first} to {last} there is no history: it begins with {source.first} and ends with {source.end}."
        )
    state = await source.state(await provable_start(source, max(first, source.first), last) - 1)
    frames = _told(source.read(state.seq, last), last, told)
    report = await verify(frames, state, after=first - 1, redacted=source.redacted)
    difference = report.difference
    if difference is not None and difference.job:
        events = await story(source, difference.job, difference.seq)
        lines = tuple(_line(event) for event in events[-STORY_SHOWN_MAX:])
        report.difference = msgspec.structs.replace(difference, story=lines)
    return report


async def _sequence(source: Source, at: Moment, default: int, told: Told) -> int:
    if at.at_ns is not None:
        return (await reach(source, at, told)).state.seq
    return default if at.seq is None else at.seq


async def _told(frames: AsyncGenerator[Recorded, None], end: int, told: Told) -> AsyncGenerator[Recorded, None]:
    """Pass the frames on, and say how far it is now and then."""
    async with aclosing(frames):
        async for recorded in frames:
            if recorded.seq % FRAMES_PER_WORD == 0:
                told(f"Deciding again: frame {recorded.seq} of {end}")
            yield recorded


def _line(event: Document) -> str:
    return f"{event['seq']}.{event['index']} {moments.stamp(event['at_ns'])} {event['words']}"


def as_text(report: Verification) -> str:
    """Return what was proved, or the difference, for people."""
    counted = f"{report.frames} frames, {report.events} events, {report.passes} passes"
    if report.difference is not None:
        return _difference(report.difference, report, counted)
    if report.passes:
        lines = [
            f"history verified: {counted}; {report.decisions_verified} of {report.decisions} decisions recomputed and "
            f"equal, {report.compared}"
        ]
    else:
        lines = [f"nothing to prove: no pass was decided there ({counted} read)"]
    lines.append(f"state {report.state_digest}")
    if report.unproved:
        lines.append("the first pass was decided before what was read begins: it is not among those that were verified")
    return "\n".join(lines)


def _difference(found: Difference, report: Verification, counted: str) -> str:
    lines = [
        f"HISTORY DIFFERS at sequence {found.seq}, event {found.index} (decided on the state after {found.at_seq})",
        f"  recorded   {found.recorded}",
        f"  recomputed {found.recomputed}",
    ]
    if found.inputs is not None:
        inputs = found.inputs
        same = "the same state" if inputs.recorded_state_digest == inputs.state_digest else "ANOTHER STATE"
        if report.compared != Verification().compared:
            same = "a state whose digest was taken out"
        lines += [
            f"decided at {moments.stamp(inputs.now_ns)} by policy {inputs.policy} on {same}",
            f"  recorded   {inputs.recorded_state_digest}",
            f"  recomputed {inputs.state_digest}",
        ]
        if inputs.core != CORE_VERSION:
            lines.append(
                f"recorded by core {inputs.core}, this is core {CORE_VERSION}: the version that wrote it can prove it"
            )
        if inputs.facts:
            lines += ["folded since the last pass that was equal:", *(f"  {fact}" for fact in inputs.facts)]
    if found.story:
        lines += [f"what happened to {found.job}:", *(f"  {line}" for line in found.story)]
    lines.append(f"{report.decisions_verified} decisions before it are equal, {report.compared} ({counted} read)")
    return "\n".join(lines)
