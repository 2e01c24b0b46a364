"""Render a trace as a tree: when each span began, how long it took, and what it is about.

Importable by others: `render(spans)` takes what `spans.read` returns.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from tidegate.cli import text
from tidegate.cli.spans import Span

if TYPE_CHECKING:
    from rich.console import RenderableType

ROUTINE_SHOWN_FIRST, ROUTINE_SHOWN_LAST = 9, 3
"""Of a run of routine spans only so many are shown; in between they are summed up."""
TELLING_CHARS_MAX = 160
_ROUTINE = ("phase ", "resize", "save", "verify")
_STYLES = {
    "submit": "bold",
    "attempt": "bold cyan",
    "preempt": "magenta",
    "stop": "magenta",
    "suspend": "blue",
    "end": "bold green",
}
_TELLING = (
    *("node", "step", "lost_steps", "for_job", "outcome", "exit_code", "signal", "image_digest"),
    *("bytes", "checkpoint", "applied", "quotas", "reserved_nodes", "after", "fault", "spans_left_out"),
)
"""The attributes that a line shows, in this order; `--json` has them all."""
_SHORT = {"image_digest", "checkpoint"}
_DIGEST_CHARS = 12


def render(spans: list[Span], *, everything: bool = False) -> RenderableType:
    """Return the tree, times relative to the first span; `everything` sums nothing up."""
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    origin_ns = spans[0].start_ns if spans else 0
    for prefix, item in _lines(spans, everything):
        if isinstance(item, str):
            table.add_row("", Text(prefix + item, style="dim italic"))
            continue
        style = "bold red" if item.failed else _STYLES.get(item.name, "")
        table.add_row(
            text.offset(item.start_ns, origin_ns),
            Text.assemble((prefix, "dim"), (item.name, style), _rank(item)),
            text.span(item.duration_ns / text.NS_PER_SECOND) if item.duration_ns else "·",
            Text(telling(item), style="red" if item.failed else "dim"),
        )
    return table


def telling(span: Span) -> str:
    """Return what a span is about, on one line."""
    shown = [_shown(name, span.attributes[name]) for name in _TELLING if name in span.attributes]
    result = {
        name.removeprefix("result."): value for name, value in span.attributes.items() if name.startswith("result.")
    }
    sums = [
        f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in span.attributes.items()
        if name.endswith((".count", ".seconds"))
    ]
    why = span.attributes.get("reasons") or span.attributes.get("end_reasons") or []
    number = [f"number {span.attributes['attempt']}"] if span.name == "attempt" else []
    parts = [span.message, *number, *shown, *sums, text.amounts(result), "; ".join(why)]
    line = ", ".join(part for part in parts if part)
    return line if len(line) <= TELLING_CHARS_MAX else line[: TELLING_CHARS_MAX - 1] + "…"


def _shown(name: str, value: Any) -> str:
    if name == "bytes":
        return text.size(int(value))
    if isinstance(value, list):
        value = " | ".join(str(item) for item in value)
    short = str(value).removeprefix("sha256:")[:_DIGEST_CHARS] if name in _SHORT else value
    return f"{name} {short}"


def _rank(span: Span) -> str:
    return f" (rank {span.attributes['rank']})" if span.attributes.get("rank") else ""


def _lines(spans: list[Span], everything: bool) -> list[tuple[str, Span | str]]:
    """Return the tree's lines, each with what is drawn before it. A span whose parent is missing stands at the top."""
    known = {span.id for span in spans}
    below: dict[str, list[Span]] = {}
    for span in spans:
        below.setdefault(span.parent_id if span.parent_id in known else "", []).append(span)
    lines: list[tuple[str, Span | str]] = []

    def add(parent_id: str, indent: str) -> None:
        found = below.get(parent_id, [])
        items: list[Span | str] = list(found) if everything else _condensed(found)
        for number, item in enumerate(items):
            last = number == len(items) - 1
            branch = "" if not parent_id else indent + ("└ " if last else "├ ")
            lines.append((branch, item))
            if isinstance(item, Span):
                add(item.id, indent + (("  " if last else "│ ") if parent_id else ""))

    add("", "")
    return lines


def _condensed(spans: list[Span]) -> list[Span | str]:
    """Return siblings with the middle of every long run of routine summed up."""
    lines: list[Span | str] = []
    for routine, run in groupby(spans, key=lambda span: span.name.startswith(_ROUTINE)):
        found = list(run)
        middle = found[ROUTINE_SHOWN_FIRST:-ROUTINE_SHOWN_LAST]
        if routine and len(middle) > 1:
            took = text.span((middle[-1].end_ns - middle[0].start_ns) / text.NS_PER_SECOND)
            summed = f"… {took}: {len(middle)} more spans (--all shows them) …"
            lines += [*found[:ROUTINE_SHOWN_FIRST], summed, *found[-ROUTINE_SHOWN_LAST:]]
        else:
            lines += found
    return lines
