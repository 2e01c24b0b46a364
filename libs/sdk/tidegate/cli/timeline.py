"""Render a job's history as text: a ribbon of states and phases over time, then every event in words.

Importable by others: `render(detail)` takes what `GET /v1/jobs/{id}` answers. A phase change, the quota decided for it
and the kernel's word on that are one line, and long runs of routine (phases, quotas, checkpoints) are summed up, so
that an hour of training still fits on a screen.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any

from tidegate.cli import lending, moments, ribbon, text
from tidegate.cli.wording import Entry, quotas_in_words, sentence

if TYPE_CHECKING:
    from rich.console import RenderableType

ROUTINE_KINDS = frozenset(
    {
        "PhaseChanged",
        "PhaseRequested",
        "QuotaChanged",
        "QuotaApplied",
        "CheckpointSaved",
        "CheckpointVerified",
        "CheckpointPartSaved",
        "CheckpointPartPromoted",
        "ProgressReported",
    }
)
ROUTINE_SHOWN_FIRST, ROUTINE_SHOWN_LAST = 4, 2
"""Of a run of routine lines only so many are shown; in between they are summed up."""

LINES_LOOKED_BACK = 3
"""A quota that follows from a phase change stands so near behind it."""

_STYLES = {
    "JobSubmitted": "bold",
    "JobPlaced": "cyan",
    "JobStarted": "bold green",
    "JobResumed": "bold green",
    "PreemptRequested": "bold magenta",
    "StopRequested": "bold magenta",
    "CancelRequested": "magenta",
    **dict.fromkeys(
        ("HoldRequested", "ReleaseRequested", "SuspendRequested", "ResumeRequested", "RequeueRequested"), "magenta"
    ),
    **dict.fromkeys(("JobPriorityChanged", "JobLimitChanged", "QueueChanged"), "magenta"),
    **dict.fromkeys(("MaintenancePlanned", "MaintenanceCancelled"), "magenta"),
    "JobSuspended": "bold blue",
    "JobRequeued": "bold blue",
    "CheckpointSaved": "cyan",
    "CheckpointVerified": "cyan",
    "CheckpointFailed": "bold red",
    "CheckpointPartSaved": "cyan",
    "CheckpointPartPromoted": "cyan",
    "CheckpointPartFailed": "red",
    "PlacementRejected": "red",
    "JobFailed": "bold red",
    "JobRejected": "bold red",
    "JobCompleted": "bold green",
    "JobCancelled": "bold",
    "QuotaChanged": "dim",
    "QuotaApplied": "dim",
    "HandBackRequested": "magenta",
    "ShrinkRefused": "yellow",
    "HandBackFailed": "yellow",
    "StepRateLow": "yellow",
    "NodeDrainRequested": "magenta",
    "NodeResumeRequested": "magenta",
    "NodeForgetRequested": "magenta",
    "NodeForgotten": "dim",
    "NodeCordoned": "bold red",
    "ImagePrefetchHinted": "dim",
    "NodeImagesChanged": "dim",
    "ImageCached": "dim",
    "ImageEvicted": "dim",
    "ImageUnavailable": "yellow",
    "ProgressReported": "dim",
    "NodeUnreachable": "yellow",
    "NodeLost": "bold red",
    "DecisionPass": "dim",
}
_PLURALS = {
    "PhaseChanged": "phase changes",
    "PhaseRequested": "phases asked for",
    "QuotaChanged": "quota decisions",
    "QuotaApplied": "quotas applied",
    "CheckpointSaved": "checkpoints saved",
    "CheckpointVerified": "checkpoints verified",
    "CheckpointPartSaved": "parts of checkpoints saved",
    "CheckpointPartPromoted": "parts of checkpoints promoted",
    "ProgressReported": "reports of progress",
}


class Line:
    """One line of the timeline: an event, and the routine that belongs to it."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.quota: Entry | None = None
        self.applied: Entry | None = None

    @property
    def entries(self) -> list[Entry]:
        """Return all its events."""
        return [entry for entry in (self.entry, self.quota, self.applied) if entry is not None]

    def take(self, entry: Entry) -> bool:
        """Take in a quota that follows from the phase, or the kernel's word on it; say whether it belongs here."""
        if self.entry["kind"] not in ("PhaseChanged", "QuotaChanged") or entry.get("void"):
            return False
        if entry.get("rank") != self.entry.get("rank"):
            return False
        if entry["kind"] == "QuotaChanged" and self.entry["kind"] == "PhaseChanged" and self.quota is None:
            if lending.terms(entry["data"]):  # it says more than limits
                return False
            self.quota = entry
            return True
        decided = self.quota or (self.entry if self.entry["kind"] == "QuotaChanged" else None)
        same = decided is not None and entry["data"].get("quotas") == decided["data"].get("quotas")
        if entry["kind"] == "QuotaApplied" and same and self.applied is None and entry["data"].get("enforced", True):
            self.applied = entry
            return True
        return False

    def words(self) -> str:
        """Return the line in words."""
        words = sentence(self.entry)
        if self.quota is not None:
            words += f" → {quotas_in_words(self.quota['data'].get('quotas'))}"
        if self.applied is not None:
            after_ms = (self.applied["at_ns"] - self.entry["at_ns"]) // 1_000_000
            words += f", in the kernel after {max(after_ms, 0)} ms"
        return words


def style_of(kind: str) -> str:
    """Return the style in which events of this kind are shown."""
    return _STYLES.get(kind, "")


def render(job_detail: dict[str, Any], *, everything: bool = False, now_ns: int | None = None) -> RenderableType:
    """Return the job's timeline, times relative to its submission; `everything` sums nothing up.

    With `now_ns` the ribbon of a job that has not ended goes on until now.
    """
    from rich.console import Group  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    history = job_detail["timeline"]
    entries: list[Entry] = history["events"]
    origin_ns = job_detail["submitted_at_ns"]
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for line in [Line(entry) for entry in entries] if everything else _condensed(entries):
        if isinstance(line, str):
            table.add_row("", Text(line, style="dim italic"))
            continue
        kind = line.entry["kind"]
        style, words = style_of(kind), line.words()
        if kind == "JobSubmitted":
            # The event's specification is left out of a timeline, since the job shows it once.
            words += f" by {job_detail['submitter']}, priority {job_detail['priority']}"
            words += f", at {moments.date_and_time(line.entry['at_ns'])}"
        if line.entry.get("void"):
            style, words = "dim strike", f"{words}  (came too late, void)"
        table.add_row(text.offset(line.entry["at_ns"], origin_ns), Text(words, style=style))
    parts: list[RenderableType] = [ribbon.render(job_detail, now_ns), Text(""), table]
    if history["dropped"]:
        parts.append(Text(f"{history['dropped']} events in the middle are no longer kept here.", style="dim italic"))
    return Group(*parts)


def _condensed(entries: list[Entry]) -> list[Line | str]:
    """Return the lines with the middle of every long run of routine summed up."""
    lines: list[Line | str] = []
    for routine, run in groupby(_folded(entries), key=lambda line: line.entry["kind"] in ROUTINE_KINDS):
        found = list(run)
        middle = found[ROUTINE_SHOWN_FIRST:-ROUTINE_SHOWN_LAST]
        if routine and len(middle) > 1:
            lines += [*found[:ROUTINE_SHOWN_FIRST], _summed(middle), *found[-ROUTINE_SHOWN_LAST:]]
        else:
            lines += found
    return lines


def _folded(entries: list[Entry]) -> list[Line]:
    """Return a line for each event that does not belong to one of the two lines before it."""
    lines: list[Line] = []
    for entry in entries:
        if not any(line.take(entry) for line in reversed(lines[-LINES_LOOKED_BACK:])):
            lines.append(Line(entry))
    return lines


def _summed(lines: list[Line]) -> str:
    entries = [entry for line in lines for entry in line.entries]
    counts = Counter(entry["kind"] for entry in entries)
    span = text.span((entries[-1]["at_ns"] - entries[0]["at_ns"]) / text.NS_PER_SECOND)
    return f"… {span}: " + ", ".join(f"{count} {_PLURALS[kind]}" for kind, count in counts.most_common()) + " …"
