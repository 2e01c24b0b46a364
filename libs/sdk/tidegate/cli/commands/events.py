"""`tidegate events`: history as it is written, filtered, looked back over and followed."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli import complete, exits, moments, output
from tidegate.cli.connect import connect
from tidegate.cli.exits import CommandError
from tidegate.cli.timeline import style_of
from tidegate.cli.wording import sentence

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tidegate.client import Client, EventFilter

NEWEST_MAX = 1000
NEWEST_DEFAULT = 100
NEWEST_BEFORE_FOLLOWING = 10
_LEFT_OUT = "-DecisionPass"

Event = dict[str, Any]


def events(  # noqa: PLR0917
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    job: Annotated[str | None, typer.Option(help="Only of this job.", autocompletion=complete.jobs)] = None,
    tenant: Annotated[str | None, typer.Option(help="Only of this tenant's jobs.")] = None,
    kind: Annotated[
        list[str] | None, typer.Option(help="Only of this kind; -KIND leaves it out. May be given repeatedly.")
    ] = None,
    since: Annotated[str | None, typer.Option(help="From then on: 10m, 2h, 1d ago, or a date and time.")] = None,
    until: Annotated[str | None, typer.Option(help="Before then: as --since.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=0, max=NEWEST_MAX, help="The newest so many (100; 10 with -f).")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="From the beginning of history.")] = False,
    passes: Annotated[bool, typer.Option("--passes", help="Show DecisionPass events as well.")] = False,
    as_json: output.JsonFlag = False,
) -> None:
    """Show events: the newest, those of a time, or what comes.

    With --since or --all there is no limit. With --json -f each event is one JSON document on a line of its own.
    Times are of the event's writer, shown in this machine's time zone.

    \b
    Examples:
      tidegate events
      tidegate events -f
      tidegate events --job j-4k2mz7q5x3w6y2ab --kind PreemptRequested --kind JobSuspended
      tidegate events --since '2026-11-29 03:00' --until '2026-11-29 03:10'
      tidegate events --since 10m -f --json | jq -c '{kind, job_id}'
    """
    if follow and until is not None:
        raise CommandError("--until stands beside --follow.", "Leave one of them out.", exits.USAGE)
    kinds = list(kind or ())
    if not passes and not any(not word.startswith("-") for word in kinds):
        kinds.append(_LEFT_OUT)
    from tidegate.client import EventFilter  # noqa: PLC0415

    chosen = EventFilter(
        job=job,
        tenant=tenant,
        kinds=kinds,
        since_ns=moments.parse(since, "--since") if since else None,
        until_ns=moments.parse(until, "--until") if until else None,
    )
    if limit is None and not everything and since is None:
        limit = NEWEST_BEFORE_FOLLOWING if follow else NEWEST_DEFAULT
    write = _write_line if as_json else _Printer().write
    with connect() as client:
        if follow:
            _follow(client, chosen, limit, write)
            return
        page = _read(client, chosen, limit)
    if as_json:
        output.print_document(page)
        return
    for event in page["events"]:
        write(event)
    _note(page)


def _read(client: Client, chosen: EventFilter, limit: int | None) -> dict[str, Any]:
    """Return the events as one page: the newest, or all of them."""
    with output.Progress("Reading events") as progress:
        if limit:
            return client.newest_events(limit, chosen)
        last: dict[str, Any] = {}
        found: list[Event] = []

        def on_page(page: dict[str, Any]) -> None:
            last.update(page)
            at = page["cursor"].partition(".")[0]
            progress.update(f"Reading events: {len(found) + len(page['events'])} so far, at {at} of {page['end']}")

        found.extend(client.events(chosen, on_page=on_page))
        return {**last, "events": found}


def _follow(client: Client, chosen: EventFilter, limit: int | None, write: Any) -> None:
    after = None
    if limit is not None:
        page = client.newest_events(max(limit, 1), chosen)
        after = page["cursor"]
        _write_all(page["events"] if limit else [], write)
    _write_all(client.events(chosen, after=after, follow=True), write)


def _write_all(found: Iterable[Event], write: Any) -> None:
    for event in found:
        write(event)
        sys.stdout.flush()


def _write_line(event: Event) -> None:
    sys.stdout.write(json.dumps(event, ensure_ascii=False) + "\n")


def _note(page: dict[str, Any]) -> None:
    if not page["events"]:
        output.note("No events match.")
    if page.get("complete") is False:
        output.note("Looked back over a bounded part of history only; --since or --all read further.")
    if page.get("dropped"):
        output.note(f"{page['dropped']} events of this job are no longer kept at the gateway.")


class _Printer:
    """Prints events for people, each on a line of its own, coloured where a terminal shows it."""

    def __init__(self) -> None:
        self._console = output.console()

    def write(self, event: Event) -> None:
        from rich.text import Text  # noqa: PLC0415

        style = "dim strike" if event.get("void") else style_of(event["kind"])
        late = "  (came too late, void)" if event.get("void") else ""
        row = Text.assemble(
            (moments.stamp(event["at_ns"]), "dim"),
            f"  {_about(event):<20}  ",
            (f"{sentence(event)}{late}", style),
        )
        # One event, one line: what reads it may be grep.
        self._console.print(row, soft_wrap=True)


def _about(event: Event) -> str:
    """Return what the event is about: its job, else its node, else its writer."""
    return str(event.get("job_id") or event.get("node") or event["writer"]["service"])
