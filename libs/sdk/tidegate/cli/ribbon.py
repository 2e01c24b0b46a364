"""A job's life on two lines: in which state, and in which phase, it was at each moment."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from tidegate.cli import text

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDTH_CHARS = 72

# Kind of event -> the state from there on; letters make it readable without colour.
_STATES = {
    "JobSubmitted": "waiting",
    "JobPlaced": "starting",
    "JobStarted": "running",
    "JobResumed": "running",
    "PreemptRequested": "leaving",
    "StopRequested": "leaving",
    "JobSuspended": "suspended",
    "JobRequeued": "waiting",
}
_ENDS = frozenset({"JobCompleted", "JobFailed", "JobCancelled", "JobRejected"})
_LOOKS = {
    "waiting": ("·", "yellow"),
    "starting": ("▒", "cyan"),
    "running": ("█", "green"),
    "leaving": ("▓", "magenta"),
    "suspended": ("░", "blue"),
}
_PHASE_STYLES = ("cyan", "yellow", "magenta", "green", "blue", "red")


class _Track:
    """Values over time: each holds from its time until the next."""

    def __init__(self) -> None:
        self.times: list[int] = []
        self.values: list[str] = []

    def set(self, at_ns: int, value: str) -> None:
        # Clocks of different writers differ a little; a track never goes back.
        self.times.append(max(at_ns, self.times[-1]) if self.times else at_ns)
        self.values.append(value)

    def at(self, moment_ns: int) -> str:
        index = bisect_right(self.times, moment_ns)
        return self.values[index - 1] if index else ""


def render(job_detail: dict[str, Any], now_ns: int | None = None) -> RenderableType:
    """Return the ribbon with its legend, up to the job's end or now, of what `GET /v1/jobs/{id}` answers."""
    from rich.text import Text  # noqa: PLC0415

    states, phases = _tracks(job_detail["timeline"]["events"])
    begin = job_detail["submitted_at_ns"]
    end = max(job_detail["ended_at_ns"] or now_ns or begin, begin, *states.times[-1:], *phases.times[-1:])
    moments = [begin + (end - begin) * cell // WIDTH_CHARS for cell in range(WIDTH_CHARS)]
    letters = _letters(phases.values)
    line, under = Text("state  "), Text("phase  ")
    for moment in moments:
        state = states.at(moment)
        mark, style = _LOOKS.get(state, (" ", ""))
        line.append(mark, style)
        phase = phases.at(moment) if state in ("running", "leaving") else ""
        under.append(letters[phase][0] if phase else " ", letters[phase][1] if phase else "")
    seen = dict.fromkeys(states.values)
    legend = [f"{_LOOKS[name][0]} {name}" for name in seen if name in _LOOKS]
    legend += [f"{letter} {phase}" for phase, (letter, _) in letters.items()]
    ruler = f"       0s{text.span((end - begin) / text.NS_PER_SECOND):>{WIDTH_CHARS - 2}}"
    return Text("\n").join([Text(ruler, style="dim"), line, under, Text("       " + "   ".join(legend), style="dim")])


def _tracks(entries: list[dict[str, Any]]) -> tuple[_Track, _Track]:
    states, phases = _Track(), _Track()
    for entry in entries:
        kind = entry["kind"]
        if entry.get("void"):
            continue
        if kind in _STATES:
            states.set(entry["at_ns"], _STATES[kind])
            if kind == "JobPlaced":
                # An attempt begins outside of any phase, whatever the one before was doing.
                phases.set(entry["at_ns"], "")
        elif kind in _ENDS:
            states.set(entry["at_ns"], "ended")
        elif kind == "PhaseChanged" and not entry.get("rank"):
            phases.set(entry["at_ns"], entry["data"]["phase"])
    return states, phases


def _letters(found: list[str]) -> dict[str, tuple[str, str]]:
    """Return a letter of its own and a style for each phase, its first letter where that is free."""
    letters: dict[str, tuple[str, str]] = {}
    for phase in dict.fromkeys(filter(None, found)):
        taken = {letter for letter, _ in letters.values()}
        free = [char for char in [*phase, *"0123456789"] if char.isalnum() and char not in taken]
        letters[phase] = (free[0] if free else "?", _PHASE_STYLES[len(letters) % len(_PHASE_STYLES)])
    return letters
