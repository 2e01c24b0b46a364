"""A picture of one run, or of several beside each other: what was used, who waited, and who was on which node.

matplotlib is imported when a picture is asked for, and nowhere else. It draws without a display, and the same runs give
the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import msgspec
from tidegate.cli import exits
from tidegate.cli.exits import CommandError
from tidegate.cli.text import span

from tidegate_scheduler.simulator.gantt import OTHERS, Bar, Rows, Value, curve, groups, rows, ticks, window
from tidegate_scheduler.simulator.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")
RUNS_MAX = 3
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
"""Okabe's and Ito's palette, which people see apart who see few colours; in grey its first ones differ, too."""
GREY = "#999999"
DARK = ("#0072B2", "#D55E00")
"""On these one writes white."""
HATCHES = {"suspended": "////", "lost": "xxxx", "failed": "xxxx", "stopped": "...."}
LABELLED_BARS_MAX = 80
LABEL_CHARS_MIN = 3
CHAR_INCHES = 0.062
TITLE_CHARS = 72
LABEL_INCHES_MIN = 0.09
WIDTH_INCHES, CURVE_INCHES, ROW_INCHES = 11.0, 2.0, 0.28
DOTS_PER_INCH = 120
SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "tidegate",
    "svg.fonttype": "none",
    "font.size": 9.0,
    "hatch.linewidth": 0.6,
    "text.parse_math": False,  # a dollar in a name is a dollar
}


class _Room(msgspec.Struct, frozen=True):
    """How much there is to write in: characters along the time, and the height of a node."""

    chars_a_second: float
    row_inches: float


def check(path: Path) -> None:
    """See that a picture can be made there, before a long simulation. Raises CommandError."""
    if path.suffix.lower() not in SUFFIXES:
        raise CommandError(f"{path} is no name for a picture.", f"Accepted are {' and '.join(SUFFIXES)}.", exits.USAGE)
    if not path.parent.is_dir():
        raise CommandError(f"{path} cannot be written: there is no directory {path.parent}.", "", exits.USAGE)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        why = "it is a directory" if path.is_dir() else "that is not permitted"
        raise CommandError(f"{path} cannot be written: {why}.", "", exits.USAGE)
    if find_spec("matplotlib") is None:
        remedy = "It comes with the extra `picture`: `pip install 'tidegate-server[picture]'`."
        raise CommandError("A picture needs matplotlib, which is not installed.", remedy, exits.ENVIRONMENT)


def draw(runs: Sequence[Run], path: Path) -> None:
    """Draw the runs beside each other, with the same scales, as PNG or SVG. Raises CommandError."""
    check(path)
    if not 1 <= len(runs) <= RUNS_MAX:
        raise ValueError(f"{len(runs)} runs do not fit beside each other: 1 to {RUNS_MAX} do")
    from matplotlib import rc_context  # noqa: PLC0415 - it takes a second to import
    from matplotlib.figure import Figure  # noqa: PLC0415

    suffix = path.suffix.lower().removeprefix(".")
    undated: dict[str, Any] = {"Date": None} if suffix == "svg" else {"Software": None}
    with rc_context(SETTINGS):
        figure = Figure(layout="constrained", dpi=DOTS_PER_INCH)
        _fill(figure, runs)
        try:
            figure.savefig(path, format=suffix, metadata=undated)
        except OSError as error:
            message = f"{path} cannot be written: {error.strerror or error}."
            raise CommandError(message, "", exits.REFUSED) from error


def _fill(figure: Figure, runs: Sequence[Run]) -> None:
    found = rows(runs)
    gantt_inches = max(1.5, ROW_INCHES * len(found[0].names) + 0.6)
    heights = [CURVE_INCHES, CURVE_INCHES, gantt_inches]
    inches = WIDTH_INCHES if len(runs) == 1 else 0.75 * WIDTH_INCHES
    figure.set_size_inches(inches * len(runs), sum(heights) + 1.2)
    begin, end = window(runs)
    room = _Room(inches / CHAR_INCHES / (end - begin), gantt_inches / max(1, len(found[0].names)))
    grid = figure.subplots(3, len(runs), squeeze=False, sharex=True, sharey="row", height_ratios=heights)
    colours = _colours(runs)
    for column, (run, lines) in enumerate(zip(runs, found, strict=True)):
        used, queue, gantt = (grid[row][column] for row in range(3))
        used.set_title(_title(run), fontweight="bold", loc="left")
        _used(used, run)
        _queue(queue, run)
        _gantt(gantt, run, lines, colours)
        _label(gantt, run, (lines, colours), room)
    for axes in (each for row in grid for each in row[1:]):
        axes.set_ylabel("")
    for axes in grid[-1]:
        axes.set_xlim(begin, end)
        axes.set_xticks(ticks(begin, end), [span(each).replace("d00h", "d") for each in ticks(begin, end)])
        axes.set_xlabel("since the beginning")
    _legend(figure, runs, colours)


def _title(run: Run) -> str:
    """Return what it is of: the workload, the rules in full, and the seed where chance has a part in it."""
    seed = f", seed {run.seed}" if run.costs.node_failures_per_day_millis else ""
    return "\n".join((run.workload, *wrap(f"{run.stated or run.rules}{seed}", TITLE_CHARS)))


def _used(axes: Axes, run: Run) -> None:
    """Show what is held and what of it is busy: devices, or CPU where no node has any."""
    if any(sample.gpus_total_millis for sample in run.samples):
        _step(axes, run, lambda s: s.gpus_total_millis, 1000, label="there are", color="black", linewidth=1.0)
        _area(axes, run, lambda s: s.gpus_held_millis, label="held", color=COLOURS[4])
        _area(axes, run, lambda s: s.gpus_busy_millis, label="working", color=COLOURS[0])
        axes.set_ylabel("GPUs")
    else:
        _area(axes, run, lambda s: s.cpu_held_millis, label="held", color=COLOURS[4])
        axes.set_ylabel("CPUs")
    axes.set_ylim(bottom=0)
    _name_curves(axes)


def _queue(axes: Axes, run: Run) -> None:
    _area(axes, run, lambda s: s.waiting * 1000, label="wait", color=COLOURS[1])
    _step(axes, run, lambda s: s.placed, 1, label="placed", color=COLOURS[0], linewidth=1.2)
    _step(axes, run, lambda s: s.working, 1, label="working", color=COLOURS[2], linewidth=1.2, linestyle="--")
    axes.set_ylabel("jobs")
    axes.set_ylim(bottom=0)
    _name_curves(axes)


def _name_curves(axes: Axes) -> None:
    """Say above the curves which is which, where it hides none of them."""
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, frameon=False, fontsize="small", borderaxespad=0)


def _step(axes: Axes, run: Run, value: Value, unit: int, **looks: Any) -> None:
    times, values = curve(run.samples, run.end_ns, value)
    axes.step(_seconds(run, times), [each / unit for each in values], where="post", **looks)


def _area(axes: Axes, run: Run, value: Value, **looks: Any) -> None:
    """Fill what lies below a curve of thousandths."""
    times, values = curve(run.samples, run.end_ns, value)
    axes.fill_between(_seconds(run, times), [each / 1000 for each in values], step="post", linewidth=0, **looks)


def _seconds(run: Run, times_ns: Sequence[int]) -> list[float]:
    return [(at_ns - run.begin_ns) / 1e9 for at_ns in times_ns]


def _gantt(axes: Axes, run: Run, lines: Rows, colours: dict[str, str]) -> None:
    """Draw each node as a row of bars, as high as each has devices: who was there, hatched where it had to leave."""
    from matplotlib.collections import PolyCollection  # noqa: PLC0415

    shapes: dict[tuple[str, str], list[list[tuple[float, float]]]] = {}
    for bar in lines.bars:
        left, right = _seconds(run, (bar.stay.from_ns, bar.stay.until_ns))
        low, high = _height(bar)
        corners = [(left, low), (left, high), (right, high), (right, low)]
        shapes.setdefault((colours[bar.stay.job], HATCHES.get(bar.stay.ended, "")), []).append(corners)
    for (colour, hatch), corners_of in sorted(shapes.items()):
        axes.add_collection(
            PolyCollection(corners_of, facecolor=colour, edgecolor="white", linewidth=0.4, hatch=hatch or None)
        )
    axes.set_yticks(range(len(lines.names)), lines.names, fontsize="small")
    axes.set_ylim(max(1, len(lines.names)) - 0.5, -0.5)
    axes.set_ylabel("nodes" if lines.nodes == len(lines.names) else f"{len(lines.names)} of {lines.nodes} nodes")


def _height(bar: Bar) -> tuple[float, float]:
    """Return where a bar lies in the row of its node, which takes most of the room between this row and the next."""
    lane = 0.86 / bar.lanes
    low = bar.row - 0.43 + bar.lane * lane
    return low, low + bar.width * lane


def _label(axes: Axes, run: Run, drawn: tuple[Rows, dict[str, str]], room: _Room) -> None:
    """Write jobs into their bars, as far as they fit, unless there are too many."""
    lines, colours = drawn
    for bar in lines.bars if len(lines.bars) <= LABELLED_BARS_MAX else ():
        left, right = _seconds(run, (bar.stay.from_ns, bar.stay.until_ns))
        low, high = _height(bar)
        chars, name = int((right - left) * room.chars_a_second) - 1, bar.stay.job
        if chars < LABEL_CHARS_MIN or (high - low) * room.row_inches < LABEL_INCHES_MIN:
            continue
        shown = name if len(name) <= chars else f"{name[: chars - 1]}…"
        colour = "white" if colours[name] in DARK else "black"
        axes.text(left, (low + high) / 2, f" {shown}", va="center", fontsize="x-small", clip_on=True, color=colour)


def _colours(runs: Sequence[Run]) -> dict[str, str]:
    """Return the colour of each job."""
    group = groups(runs, len(COLOURS))
    names = sorted(set(group.values()) - {OTHERS})
    colour = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)} | {OTHERS: GREY}
    return {job: colour[name] for job, name in group.items()}


def _legend(figure: Figure, runs: Sequence[Run], colours: dict[str, str]) -> None:
    from matplotlib.patches import Patch  # noqa: PLC0415

    group = groups(runs, len(COLOURS))
    shown = sorted({(group[job], colours[job]) for run in runs for job in {stay.job for stay in run.stays}})
    patches = [Patch(facecolor=colour, label=name) for name, colour in shown]
    ended = {stay.ended for run in runs for stay in run.stays}
    marks: dict[str, str] = {
        HATCHES[name]: name for name in ("suspended", "stopped", "failed", "lost") if name in ended
    }
    if {"failed", "lost"} <= ended:
        marks[HATCHES["lost"]] = "failed or lost"
    patches += [
        Patch(facecolor="white", edgecolor="black", hatch=hatch, label=f"{name} at its end")
        for hatch, name in marks.items()
    ]
    if patches:
        figure.legend(handles=patches, loc="outside lower center", ncols=min(len(patches), 6), fontsize="small")
