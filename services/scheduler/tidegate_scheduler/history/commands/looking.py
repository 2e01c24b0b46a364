"""`tidegate history ls` and `show`: events as they were written."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer
from tidegate.cli import moments, output, text
from tidegate_events.frame import KINDS

from tidegate_scheduler.history.commands.asking import FileOption, HomeOption, ask, moment
from tidegate_scheduler.history.commands.looks import facts, numbers_in, plain
from tidegate_scheduler.history.errors import NotInHistoryError, UsageError
from tidegate_scheduler.history.listing import Document, Wanted, causes, document, frame_at, newest
from tidegate_scheduler.history.moment import parse_place
from tidegate_scheduler.history.point import Told
from tidegate_scheduler.history.source import Source

LIMIT_DEFAULT = 50
LIMIT_MAX = 100_000


def ls(  # noqa: PLR0917 - typer calls it by name, one argument for each option
    since: Annotated[str | None, typer.Option(metavar="WHEN", help="Only events from then on.")] = None,
    until: Annotated[str | None, typer.Option(metavar="WHEN", help="Only events up to then.")] = None,
    kind: Annotated[list[str] | None, typer.Option(help="Only this kind; may be given repeatedly.")] = None,
    job: Annotated[str, typer.Option(help="Only events about this job.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=LIMIT_MAX, help="At most so many, the newest.")] = LIMIT_DEFAULT,
    file: FileOption = None,
    home: HomeOption = None,
    as_json: output.JsonFlag = False,
) -> None:
    """List events, the newest last: where they stand in history, when, what, and in words.

    WHEN is a sequence, a date with its zone, Unix nanoseconds, or a span before now: -10m.

    \b
    Examples:
      tidegate history ls
      tidegate history ls --since -10m --kind PreemptRequested --kind JobSuspended
      tidegate history ls --job j-4k2mz7q5x3w6y2ab --limit 1000
      tidegate history ls --since 2026-11-29T03:00:00Z --until 2026-11-29T03:10:00Z --json | jq '.events[].words'
      tidegate history ls --file incident.tgj
    """
    kinds = frozenset(kind or ())
    if unknown := sorted(kinds - set(KINDS)):
        raise UsageError(f"--kind {unknown[0]!r} is no kind of event.", f"Accepted are {', '.join(sorted(KINDS))}.")

    async def question(source: Source, _told: Told) -> list[Document]:
        begin = await moment(source, since, "--since")
        end = await moment(source, until, "--until")
        return await newest(source, Wanted(kinds, job, begin, end), limit)

    found = ask(file, home, "Reading history", question)
    if as_json:
        output.print_document({"events": found})
    elif not found:
        output.note("No such event in this history.")
    else:
        output.show(event_table(found))


def event_table(found: list[Document]) -> Any:
    """Return events as a table."""
    table = output.table()
    for name in ("SEQ", "TIME", "KIND", "JOB", "WHAT"):
        table.add_column(name, no_wrap=name != "WHAT", overflow="fold" if name == "WHAT" else "ellipsis")
    for each in found:
        about = each["job"] or each.get("node") or each["writer"]["instance"]
        words = f"{each['words']}  (void: {each['void']})" if each["void"] else each["words"]
        cells = (f"{each['seq']}.{each['index']}", moments.stamp(each["at_ns"]), each["kind"], about, words)
        table.add_row(*(plain(one) for one in cells))
    return table


class Shown(msgspec.Struct, frozen=True):
    """An event and what led to it, its cause first and the root last."""

    event: Document
    fields: Document
    causes: list[Document]


def show(
    place: Annotated[str, typer.Argument(metavar="SEQ[.INDEX]", help="A sequence, or one event in it.")],
    file: FileOption = None,
    home: HomeOption = None,
    as_json: output.JsonFlag = False,
) -> None:
    """Show an event whole: its fields and reasons, its trace, and the chain of causes back to its root.

    Exit code 4: there is no such event in this history.

    \b
    Examples:
      tidegate history show 48211
      tidegate history show 48211.2
      tidegate history show 48211.2 --file incident.tgj --json | jq '.events[].causes[].words'
    """
    seq, index = parse_place(place)

    async def question(source: Source, _told: Told) -> list[Shown]:
        recorded = await frame_at(source, seq)
        events = recorded.frame.events
        if index is not None and index >= len(events):
            last = f"{seq}.{len(events) - 1}"
            raise NotInHistoryError(f"There is no event {seq}.{index}: the last one there is {last}.")
        chosen = range(len(events)) if index is None else (index,)
        return [
            Shown(document(recorded, each), msgspec.to_builtins(events[each]), await causes(source, events[each]))
            for each in chosen
        ]

    found = ask(file, home, f"Looking for {place}", question)
    if as_json:
        output.print_document({"events": msgspec.to_builtins(found)})
        return
    for number, one in enumerate(found):
        if number:
            output.show("")
        _show(one)


def _show(shown: Shown) -> None:
    event, writer = shown.event, shown.event["writer"]
    by = f"{writer['service']} {writer['instance']}, epoch {writer['epoch']}, its frame {writer['writer_seq']}"
    rows = {
        "event": f"{event['seq']}.{event['index']} {event['kind']}",
        "time": moments.stamp(event["at_ns"]),
        "what": event["words"],
        "void": event["void"],
        "job": f"{event['job']} of {event['tenant']}" if event["job"] else "",
        "trace": event["trace_id"],
        "written by": by,
        "id": event["id"],
    }
    for reason in event["reasons"]:
        rows[f"reason {reason['code']}"] = "; ".join(
            part for part in (reason.get("detail", ""), numbers_in(reason.get("numbers", {}))) if part
        )
    rows |= {name: text.cell(_one_line(value)) for name, value in event["data"].items()}
    output.show(facts(rows))
    if not shown.causes:
        output.show(plain("root: nothing before it is its cause"))
    for depth, cause in enumerate(shown.causes):
        indent = "  " * depth
        line = f"{indent}because of {cause['seq']}.{cause['index']} {cause['kind']}: {cause['words']}"
        output.show(plain(line))


def _one_line(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
