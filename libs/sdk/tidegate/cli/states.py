"""The colours of states and phases, the same in every table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

STATE_STYLES = {
    "pending": "yellow",
    "placed": "cyan",
    "running": "green",
    "suspending": "magenta",
    "stopping": "magenta",
    "suspended": "blue",
    "requeued": "blue",
    "completed": "bold green",
    "failed": "bold red",
    "cancelled": "dim",
    "rejected": "bold red",
    "reachable": "green",
    "unreachable": "yellow",
    "lost": "bold red",
    "saved": "cyan",
    "verified": "green",
}


def styled(state: str) -> Text:
    """Return the state in its colour."""
    from rich.text import Text  # noqa: PLC0415

    return Text(state, style=STATE_STYLES.get(state, ""))
