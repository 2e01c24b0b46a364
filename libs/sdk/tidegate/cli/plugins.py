"""Commands that other distributions bring: entry points of the group `tidegate.commands`.

An entry point's name is the command's, and it loads a `typer.Typer` (a command with sub-commands) or a plain function
(its parameters declared as Typer knows them). Nothing is imported before the command is really called.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperGroup

from tidegate.cli import exits
from tidegate.cli.exits import CommandError

GROUP = "tidegate.commands"
SERVER_COMMANDS = {
    "up": "Start the local stack, and say when it is ready.",
    "down": "Stop the local stack; its data stays.",
    "history": "Look into the journal, explain it, prove it, carry it away.",
    "simulate": "Run a recorded workload in virtual time, under this policy or another.",
    "deadletter": "List, retry or drop what a service could not process.",
    "projections": "Say how far the read models are, and make them anew.",
}
"""Commands of the server's wheel and what they do: shown, with how to get them, even where it is not installed."""


@lru_cache(maxsize=1)
def found() -> dict[str, EntryPoint]:
    """Return the installed plug-ins by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def names() -> list[str]:
    """Return the names of all plug-in commands, installed or known."""
    return list(dict.fromkeys([*SERVER_COMMANDS, *sorted(found())]))


def placeholder(name: str) -> Any:
    """Return a command that stands for the plug-in in `--help` without importing it."""
    point = found().get(name)
    text = SERVER_COMMANDS.get(name) or f"From {point.value if point else 'a plug-in'}."
    if point is None:
        text += " (needs tidegate-server)"

    def missing() -> None:
        raise CommandError(
            f"`tidegate {name}` is part of the server, which is not installed here.",
            "Install it with `pip install tidegate-server`.",
            exits.ENVIRONMENT,
        )

    app = typer.Typer(add_completion=False)
    settings = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(name, help=text, context_settings=settings, rich_help_panel="Local stack and history")(missing)
    return typer.main.get_command(app)


def load(name: str) -> Any:
    """Return the plug-in's real command. Raises CommandError where it is not installed or does not load."""
    point = found().get(name)
    if point is None:
        return placeholder(name)
    try:
        loaded = point.load()
    except (ImportError, AttributeError) as error:
        message = f"`tidegate {name}` is installed ({point.value}) but cannot be loaded: {error}."
        raise CommandError(message, "Reinstall the distribution that brings it.", exits.ENVIRONMENT) from error
    if isinstance(loaded, typer.Typer):
        group: TyperGroup = typer.main.get_group(loaded)
        group.name = name
        return group
    if callable(loaded):
        app = typer.Typer(add_completion=False)
        app.command(name)(loaded)
        return typer.main.get_command(app)
    message = f"`tidegate {name}` ({point.value}) is a {type(loaded).__name__}."
    raise CommandError(message, "Accepted are a typer.Typer and a function.", exits.ENVIRONMENT)
