"""How answers about history look: every text of a journal is shown as it is, and never read as markup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tidegate.cli import output

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


def plain(text: str, style: str = "") -> Text:
    """Return a text as it is."""
    from rich.text import Text  # noqa: PLC0415 - `--help` must not wait for it

    return Text(text, style=style)


def facts(rows: Mapping[str, str]) -> Table:
    """Return named values under each other; those that are empty are left out."""
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        if value:
            table.add_row(plain(name), plain(value))
    return table


def rows(columns: tuple[str, ...], lines: Iterable[tuple[str, ...]], *, wraps: str = "") -> Table:
    """Return a table; the column `wraps` takes many lines, the others one."""
    table = output.table()
    for name in columns:
        table.add_column(name, no_wrap=name != wraps, overflow="fold" if name == wraps else "ellipsis")
    for line in lines:
        table.add_row(*(plain(each) for each in line))
    return table


def numbers_in(numbers: Mapping[str, Any]) -> str:
    """Return numbers on one line."""
    return ", ".join(f"{name} {value}" for name, value in numbers.items())
