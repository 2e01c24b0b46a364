"""Render a job's history as text: a ribbon of states and phases over time, then every event in words.

Importable by others: `render(detail)` takes what `GET /v1/jobs/{id}` answers. Long runs of routine events (phases,
quotas, checkpoints) are summed up in one line each, so that an hour of training still fits on a screen.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any

from tidegate.cli import ribbon, text
from tidegate.cli.wording import Entry, sentence

if TYPE_CHECKING:
    from rich.console import RenderableType

ROUTINE_KINDS = frozenset({"PhaseChanged", "QuotaChanged", "QuotaApplied", "CheckpointSaved", "CheckpointVerified"})
ROUTINE_SHOWN_FIRST, ROUTINE_SHOWN_LAST = 9, 3
"""Of a run of routine events only so many are shown; in between they are summed up."""

_STYLES = {
    "JobSubmitted": "bold",
    "JobPlaced": "cyan",
    "JobStarted": "bold green",
    "JobResumed": "bold green",
    "PreemptRequested": "bold magenta",
    "StopRequested": "bold magenta",
    "CancelRequested": "magenta",
    "JobSuspended": "bold blue",
    "JobRequeued": "bold blue",
    "CheckpointSaved": "cyan",
    "CheckpointVerified": "cyan",
    "CheckpointFailed": "bold red",
    "PlacementRejected": "red",
    "JobFailed": "bold red",
    "JobRejected": "bold red",
    "JobCompleted": "bold green",
    "JobCancelled": "bold",
    "QuotaChanged": "dim",
    "QuotaApplied": "dim",
}
_PLURALS = {
    "PhaseChanged": "phase changes",
    "QuotaChanged": "quota decisions",
    "QuotaApplied": "quotas applied",
    "CheckpointSaved": "checkpoints saved",
    "CheckpointVerified": "checkpoints verified",
}


def render(job_detail: dict[str, Any], *, everything: bool = False) -> RenderableType:
    """Return the job's timeline, times relative to its submission; `everything` sums nothing up."""
    from rich.console import Group  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    history = job_detail["timeline"]
    entries: list[Entry] = history["events"]
    origin_ns = job_detail["submitted_at_ns"]
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for line in entries if everything else _condensed(entries):
        if isinstance(line, str):
            table.add_row("", Text(line, style="dim italic"))
            continue
        style, words = _STYLES.get(line["kind"], ""), sentence(line)
        if line["kind"] == "JobSubmitted":
            # The event's specification is left out of a timeline, since the job shows it once.
            words += f" by {job_detail['submitter']}, priority {job_detail['priority']}"
        if line.get("void"):
            style, words = "dim strike", f"{words}  (came too late, void)"
        table.add_row(text.offset(line["at_ns"], origin_ns), Text(words, style=style))
    parts: list[RenderableType] = [ribbon.render(job_detail), Text(""), table]
    if history["dropped"]:
        parts.append(Text(f"{history['dropped']} events in the middle are no longer kept here.", style="dim italic"))
    return Group(*parts)


def _condensed(entries: list[Entry]) -> list[Entry | str]:
    """Return the entries with the middle of every long run of routine summed up."""
    lines: list[Entry | str] = []
    for routine, run in groupby(entries, key=lambda entry: entry["kind"] in ROUTINE_KINDS):
        found = list(run)
        first, middle, last = (
            found[:ROUTINE_SHOWN_FIRST],
            found[ROUTINE_SHOWN_FIRST:-ROUTINE_SHOWN_LAST],
            found[-ROUTINE_SHOWN_LAST:],
        )
        if routine and len(middle) > 1:
            lines += [*first, _summed(middle), *last]
        else:
            lines += found
    return lines


def _summed(entries: list[Entry]) -> str:
    counts = Counter(entry["kind"] for entry in entries)
    span = text.span((entries[-1]["at_ns"] - entries[0]["at_ns"]) / text.NS_PER_SECOND)
    return f"… {span}: " + ", ".join(f"{count} {_PLURALS[kind]}" for kind, count in counts.most_common()) + " …"
