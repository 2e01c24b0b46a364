"""`tidegate history export`, `import` and `bundle`: history as one file that proves itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from tidegate.cli import exits, output, text
from tidegate.cli.exits import CommandError
from tidegate_events.journal.archive import ArchiveInfo
from tidegate_events.operator_login import home_of

from tidegate_scheduler.history import carrying, importing
from tidegate_scheduler.history.commands.asking import FileOption, HomeOption, ask, moment
from tidegate_scheduler.history.commands.looks import facts
from tidegate_scheduler.history.commands.proving import as_text, prove
from tidegate_scheduler.history.moment import Moment
from tidegate_scheduler.history.point import Told
from tidegate_scheduler.history.source import Source, open_file
from tidegate_scheduler.history.verification import Verification


def export_command(
    to: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")],
    file: FileOption = None,
    home: HomeOption = None,
    as_json: output.JsonFlag = False,
) -> None:
    """Write the whole journal to one file: compressed, chained by digests, readable by every history command.

    Exit code 5: the file is there already or cannot be written, or the beginning of the journal is not there.

    \b
    Examples:
      tidegate history export journal.tgj
      tidegate history verify --file journal.tgj
      tidegate history import journal.tgj --home ~/another-stack
    """

    async def question(source: Source, told: Told) -> ArchiveInfo:
        return await carrying.export(source, to, told)

    _say(to, ask(file, home, "Writing the journal", question), None, as_json=as_json)


def bundle_command(  # noqa: PLR0917 - typer calls it by name, one argument for each option
    to: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write.")],
    begin: Annotated[str | None, typer.Option("--from", metavar="WHEN", help="From then on.")] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="WHEN", help="Up to then.")] = None,
    redact: Annotated[bool, typer.Option("--redact", help="Take out what may be private.")] = False,
    file: FileOption = None,
    home: HomeOption = None,
    as_json: output.JsonFlag = False,
) -> None:
    """Write what an incident report needs: a part of history, the state before it, versions and policy.

    --redact takes out commands, values of environment variables, arguments, git facts, labels, names and submitters of
    jobs, paths, results, texts of errors and names of secrets. Job ids, tenants, resources, priorities, images, times,
    and names of nodes, components and phases stay. The file is verified at once; it says whether its decisions are the
    recorded ones.

    Exit code 4: the part is not in this history. 5: the file is there already, or cannot be written.

    \b
    Examples:
      tidegate history bundle incident.tgj --from -1h
      tidegate history bundle incident.tgj --from 2026-11-29T03:00:00Z --to 2026-11-29T03:10:00Z --redact
      tidegate history why j-4k2mz7q5x3w6y2ab --file incident.tgj
    """

    async def question(source: Source, told: Told) -> tuple[ArchiveInfo, Verification]:
        first, last = await moment(source, begin, "--from"), await moment(source, end, "--to")
        part = await carrying.cut(source, first, last, told)
        info = await carrying.bundle(source, to, part, redacted=redact, told=told)
        return info, await prove(open_file(to), Moment(), Moment(), told)

    info, report = ask(file, home, "Writing the bundle", question)
    _say(to, info, report, as_json=as_json)


def import_command(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `history export` wrote.")],
    home: HomeOption = None,
    as_json: output.JsonFlag = False,
) -> None:
    """Verify an exported journal and make it the history of a stack that has none: the next `up` goes on after it.

    The file becomes the archived first generation of the stack; the stack must not run and must have no journal.

    Exit code 1: the file is damaged, or a decision in it comes out otherwise. 5: it cannot be imported there.

    \b
    Examples:
      tidegate history import journal.tgj --home ~/another-stack
      tidegate up --home ~/another-stack
    """
    place = home_of(home)
    with output.Progress(f"Verifying {path}") as progress:
        info = importing.check_file(path)
        report = asyncio.run(prove(open_file(path), Moment(), Moment(), progress.update))
        if not report.ok:
            raise CommandError(f"{path} is not imported:\n{as_text(report)}", exit_code=exits.FAILED)
        info = importing.install(path, place)
    _say(path, info, report, as_json=as_json)
    if not as_json:
        output.note(f"The stack in {place} goes on after sequence {info.last_seq}: `tidegate up --home {place}`.")


def _say(path: Path, info: ArchiveInfo, report: Verification | None, *, as_json: bool) -> None:
    if as_json:
        document = {"file": str(path), **msgspec.to_builtins(info)}
        if report is not None:
            document["verification"] = msgspec.to_builtins(report)
        output.print_document(document)
        return
    output.show(
        facts(
            {
                "file": f"{path}, {text.size(path.stat().st_size)}",
                "holds": f"sequences {info.first_seq} to {info.last_seq}",
                "digest": info.digest,
                **info.notes,
                "verified": as_text(report) if report is not None else "",
            }
        )
    )
