"""The `history` commands: what an operator asks of the journal. Plugged into `tidegate` by an entry point."""

from __future__ import annotations

import typer
from tidegate_events.process import log_as

from tidegate_scheduler.history.commands import carrying, comparing, looking, proving, telling
from tidegate_scheduler.history.commands.asking import HistoryGroup

history = typer.Typer(
    cls=HistoryGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="""Look into the journal, explain it, prove it, carry it away. It changes nothing.

    Every command that reads takes --file: then it reads that file, and needs no stack, no server and no network.

    [bold]Exit codes[/bold]

      0 ok   1 history differs, or a file is damaged   2 usage   3 nothing to read, or it needs another version
      4 not in this history   5 refused, nothing was changed
    """,
)


@history.callback()
def _group() -> None:
    log_as("history", "cli")  # warnings go to standard error: standard output is for the answer


history.command("ls")(looking.ls)
history.command("show")(looking.show)
history.command("state")(telling.state)
history.command("why")(telling.why_command)
history.command("verify")(proving.verify_command)
history.command("what-if")(comparing.what_if_command)
history.command("export")(carrying.export_command)
history.command("import")(carrying.import_command)
history.command("bundle")(carrying.bundle_command)
