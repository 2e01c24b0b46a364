"""The root of the command line: finds plug-ins late, and turns every expected error into a message and an exit code."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from tidegate.cli import exits, output, plugins
from tidegate.errors import TidegateError

ORDER = (
    *(
        "up",
        "down",
        "status",
        "top",
        "nodes",
        "node",
        "queue",
        "maintenance",
        "submit",
        "jobs",
        "job",
        "logs",
        "cancel",
    ),
    *("hold", "release", "suspend", "resume", "requeue", "checkpoint"),
    *("events", "trace", "timeline", "history", "simulate"),
)


class RootGroup(TyperGroup):
    """A group whose commands come from this package and from plug-ins."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return all commands in the order in which people need them."""
        known = set(self.commands) | set(plugins.names())
        return [*(name for name in ORDER if name in known), *sorted(known - set(ORDER))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command; for a plug-in only what `--help` shows of it."""
        own = super().get_command(ctx, cmd_name)
        if own is not None or cmd_name not in plugins.names():
            return own
        return plugins.placeholder(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is called, importing it where it is a plug-in."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and name not in self.commands:
            command = plugins.load(name)
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what it was refused goes to the user, not into a traceback."""
        try:
            return super().invoke(ctx)
        except TidegateError as error:
            output.show_error(error, as_json=output.wants_json(ctx))
            raise typer.Exit(exits.exit_code(error)) from error
        except BrokenPipeError as error:
            raise typer.Exit(exits.BROKEN_PIPE) from error
        except KeyboardInterrupt as error:
            output.note("Interrupted; nothing was undone.")
            raise typer.Exit(exits.INTERRUPTED) from error
