"""The commands `tidegate up` and `tidegate down`."""

from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import structlog
import typer
from rich.console import Console
from rich.table import Table
from tidegate.cli.output import Progress

from tidegate_local import launch, preflight
from tidegate_local.home import Home, HomeError, StackRecord
from tidegate_local.plan import StackOptions
from tidegate_local.streams import GENERATION_BYTES_MIN, JOURNAL_BYTES_MAX
from tidegate_local.supervisor import run_stack
from tidegate_local.topology import NODES_MAX, SCHEDULERS_MAX, Topology

EXIT_FAILED = 1
EXIT_CANNOT_RUN_HERE = 3
UNISOLATED_LABEL = "UNISOLATED: jobs run as plain processes, without any isolation"

HomeOption = Annotated[Path | None, typer.Option("--home", help="The stack's data directory.", show_default=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON line for programs.")]

screen = Console(stderr=False)
errors = Console(stderr=True)


def up(  # noqa: PLR0917 - typer calls it by name, one argument for each option
    home: HomeOption = None,
    foreground: Annotated[bool, typer.Option(help="Stay; Ctrl-C ends the stack.")] = False,
    unisolated: Annotated[
        bool,
        typer.Option(
            "--unisolated",
            "--offer-unisolated",
            help="Offer plain processes instead of sandboxes, to jobs that ask for it.",
        ),
    ] = False,
    cpu_millis: Annotated[int | None, typer.Option(min=100, help="Offer this much CPU, not all of it.")] = None,
    memory_mib: Annotated[int | None, typer.Option(min=64, help="Offer this much memory, not all of it.")] = None,
    nodes: Annotated[int, typer.Option(min=1, max=NODES_MAX, help="Node agents, each with its share.")] = 1,
    schedulers: Annotated[int, typer.Option(min=1, max=SCHEDULERS_MAX, help="One leads, the others stand by.")] = 1,
    bus_servers: Annotated[int, typer.Option(help="1, or 3 with a copy of every stream each.")] = 1,
    generation_bytes: Annotated[
        int, typer.Option(min=GENERATION_BYTES_MIN, help="How large one generation of the journal may become.")
    ] = JOURNAL_BYTES_MAX,
    as_json: JsonOption = False,
) -> None:
    """Start the local stack: bus, database and every service; of some kinds several, where asked."""
    options = StackOptions(
        home=(Home(home) if home else Home.default()).root,
        unisolated=unisolated,
        cpu_millis=cpu_millis,
        memory_mib=memory_mib,
        topology=Topology(bus_servers=bus_servers, schedulers=schedulers, nodes=nodes),
        generation_bytes=generation_bytes,
    )
    try:
        _refuse_where_it_cannot_run(options, as_json)
        if foreground:
            log_to_stderr()
            code = asyncio.run(run_stack(options, lambda record: _show(record, as_json)))
            raise typer.Exit(code)
        with errors.status("starting") as status:
            record = launch.start_detached(options, lambda record: status.update(_waiting(record)))
        _show(record, as_json)
    except (HomeError, launch.StartFailedError) as error:
        errors.print(f"[red]not started:[/] {error}", highlight=False)
        raise typer.Exit(EXIT_FAILED) from None


def down(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """End the local stack and everything it runs, and say what is left of it (nothing, or exit code 1)."""
    place = Home(home) if home else Home.default()
    with Progress("ending the stack: its jobs, its services, and what they left"):
        outcome = asyncio.run(launch.stop(place))
    if as_json:
        print(msgspec.json.encode(outcome).decode())
    elif not outcome.was_running and not outcome.leftovers:
        screen.print(f"no stack runs in {place.root}", highlight=False)
    else:
        screen.print(f"stack in {place.root} ended; {len(outcome.leftovers)} left behind", highlight=False)
        for leftover in outcome.leftovers:
            errors.print(f"  [red]{leftover.kind}[/] {leftover.what}", highlight=False)
    if outcome.leftovers:
        raise typer.Exit(EXIT_FAILED)


def log_to_stderr() -> None:
    """Send the supervisor's own log to stderr: stdout is for answers."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))


def _waiting(record: StackRecord) -> str:
    waiting = [name for name, service in record.services.items() if not service.ready]
    text = f"waiting for {', '.join(waiting) or 'bus and database'}"
    if waiting == ["executor"]:
        text += ": it measures the image that jobs run on (the first time that takes a minute)"
    return text


def _refuse_where_it_cannot_run(options: StackOptions, as_json: bool) -> None:
    problems = asyncio.run(preflight.check(options))
    if not problems:
        return
    if as_json:
        print(msgspec.json.encode({"state": "refused", "problems": problems}).decode())
    for problem in problems:
        errors.print(f"[red]cannot run here:[/] {problem.what}\n  remedy: {problem.remedy}", highlight=False)
    raise typer.Exit(EXIT_CANNOT_RUN_HERE)


def _show(record: StackRecord, as_json: bool) -> None:
    if as_json:
        public = {
            "state": record.state,
            "home": record.home,
            "gateway_url": record.gateway_url,
            "metrics_url": record.metrics_url,
            "node": record.node,
            "level": record.level,
            "pid": record.pid,
            "services": {name: service.pid for name, service in record.services.items()},
        }
        print(msgspec.json.encode(public).decode(), flush=True)
        return
    table = Table(title=f"Tidegate in {record.home}", title_justify="left")
    for column in ("service", "pid", "log"):
        table.add_column(column)
    for name, service in record.services.items():
        table.add_row(name, str(service.pid), service.log)
    screen.print(table)
    if record.level == "unisolated":
        screen.print(f"[bold yellow]{UNISOLATED_LABEL}[/]", highlight=False)
    screen.print(f"gateway {record.gateway_url}   metrics {record.metrics_url}", highlight=False)
    screen.print(f"node {record.node}   level {record.level}", highlight=False)
    if Path(record.home) != Home.default().root:
        screen.print(f"other commands find it by TIDEGATE_HOME={shlex.quote(record.home)}", highlight=False)
