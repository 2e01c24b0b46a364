"""`tidegate history what-if`: a recorded stretch under another policy, and first how far that can be believed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from tidegate.cli import exits, moments, output, text
from tidegate.cli.exits import CommandError

from tidegate_scheduler.history.commands.asking import FileOption, HomeOption, ask, moment
from tidegate_scheduler.history.commands.looks import facts, plain, rows
from tidegate_scheduler.history.errors import NotInHistoryError, UsageError
from tidegate_scheduler.history.point import Told
from tidegate_scheduler.history.source import FileSource, Source
from tidegate_scheduler.simulator import choice, picture, recorded
from tidegate_scheduler.simulator.calibration import Calibration, Off
from tidegate_scheduler.simulator.divergence import Compared
from tidegate_scheduler.simulator.errors import InputError, SimulationError
from tidegate_scheduler.simulator.measured import Cost
from tidegate_scheduler.simulator.what_if import NOT_MODELLED, Change, JobChange, Runs, WhatIf, what_if

JOBS_SHOWN = 10
NOTHING_TO_SAY = frozenset({"", "0", "0.00", "0.0s"})
SAME_SECONDS = 0.1
"""Who differs by less is not shown."""

ROUNDED = 0.001
"""Numbers of both runs are rounded to this, and errors to less."""

UNKNOWN = Off(0, *(6 * (float("inf"),)))
"""The error where nothing that happened tells: any difference may be the model's."""


def what_if_command(  # noqa: PLR0917 - typer calls it by name, one argument for each option
    policy: Annotated[str, typer.Option("--policy", metavar="FILE|NAME", help="The other policy, as for simulate.")],
    path: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="The same as --file FILE.")] = None,
    begin: Annotated[str | None, typer.Option("--from", metavar="WHEN", help="From then on.")] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="WHEN", help="Up to then.")] = None,
    picture_file: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE", help="Draw all three runs: .png or .svg.")
    ] = None,
    file: FileOption = None,
    home: HomeOption = None,
    as_json: output.JsonFlag = False,
) -> None:
    """Say what would have been under another policy: who would have waited, ended and been preempted otherwise.

    What came and how long it worked is as it was recorded; the rest is simulated, from the recorded state on. First it
    says how far the simulation can be believed: the recorded policy, simulated, against what really happened. Then the
    first decision that differs, on the recorded states; then the differences between the two simulations.

    Where the policy's file says nothing of a parameter, it is as it was recorded. Nothing is changed.

    Exit code 1: it cannot be simulated. 2: the policy or the picture's name cannot be used. 4: --from or --to is not in
    this history, or nothing happened between them.

    \b
    Examples:
      tidegate history what-if incident.tgj --policy elastic
      tidegate history what-if --from -2h --policy patient.json --picture patient.png
      tidegate history what-if --from 40000 --to 48211 --policy fifo --json | jq '.jobs[0]'
    """
    if path is not None and file is not None:
        raise UsageError("The file is given twice.", "Accepted is FILE or --file FILE.")
    if picture_file is not None:
        picture.check(picture_file)
    chosen = _chosen(policy)

    async def question(source: Source, told: Told) -> tuple[WhatIf, Runs]:
        first, last = await moment(source, begin, "--from"), await moment(source, end, "--to")
        name = source.path.name if isinstance(source, FileSource) else "journal"
        recording = await recorded.read(source, name, first, last, told)
        if not recording.workload.arrivals:
            raise NotInHistoryError(f"No job was there from {recording.from_seq + 1} to {recording.until_seq}.")
        try:
            return await what_if(source, recording, chosen, told)
        except InputError as error:
            raise UsageError(f"{error}.") from error
        except SimulationError as error:
            raise CommandError(f"{error}.", exit_code=exits.FAILED) from error

    answer, runs = ask(path or file, home, "Reading what happened", question)
    if as_json:
        output.print_document({**msgspec.to_builtins(answer), "not_modelled": list(NOT_MODELLED)})
    else:
        _show(answer)
    if picture_file is not None:
        picture.draw([runs.happened, runs.recorded, runs.other], picture_file)


def _chosen(policy: str) -> choice.Choice:
    try:
        return choice.choose(policy)
    except InputError as error:
        raise UsageError(f"{error}.") from error


# ---- for people: what can be believed, what differs, who it means, and what is not in it ----


def _show(found: WhatIf) -> None:
    output.show(facts({"stretch": _stretch(found), "recorded": found.stated[0], "what if": found.stated[1]}))
    output.show("", *_calibrated(found.calibration))
    output.show("", plain("first decision that differs", "bold"), *_first(found.compared))
    output.show("", plain("what it comes to", "bold"), *map(plain, _counted(found)), _changes(found))
    output.show("", *_jobs(found))
    notes = [*found.notes, _costs(found.measured), f"not modelled: {'; '.join(NOT_MODELLED)}"]
    output.show("", *(plain(f"- {note}") for note in notes))


def _stretch(found: WhatIf) -> str:
    lasted = text.span((found.end_ns - found.begin_ns) / text.NS_PER_SECOND)
    return (
        f"{found.workload}, sequences {found.from_seq + 1} to {found.until_seq}, {moments.stamp(found.begin_ns)}, "
        f"{lasted}, {text.count(len(found.jobs), 'job')}"
    )


def _costs(measured: tuple[Cost, ...]) -> str:
    """Return what things take in the model: the middle of what was seen, or what the model has by itself."""
    said = []
    for cost in measured:
        seconds = cost.value / 1000 if cost.name.endswith("_ms") else cost.value
        name = cost.name.removesuffix("_ms").removesuffix("_seconds").replace("_", " ")
        said.append(f"{name} {text.span(seconds)} ({text.count(cost.seen, 'time') if cost.seen else 'never'} seen)")
    return f"what things take: {', '.join(said)}"


def _calibrated(found: Calibration) -> list[Any]:
    if found.off is None:
        return [
            plain(
                "calibration: no job ran to an end in the recording and in the model, so nothing says how good it is",
                "bold",
            )
        ]
    real, model, off = found.happened, found.simulated, found.off
    lines = [
        "calibration (the recorded policy, simulated, against what happened; "
        f"{text.count(found.jobs, 'job')} that ran to an end)",
        f"  completion  {_error(real.completion_s, model.completion_s)}; half of the jobs within "
        f"{text.span(found.completion_off_s)}, {found.worst} is farthest off: {text.span(found.worst_off_s)}",
        f"  waiting     {_error(real.waiting_s, model.waiting_s)}, a job is off by "
        f"{text.span(off.waiting_s)} on average"
        + (f"; for phases {_error(real.asked_s, model.asked_s)}" if real.asked_s or model.asked_s else ""),
        f"  preemptions {real.preemptions} real, {model.preemptions} simulated; work lost "
        f"{text.span(real.lost_s)} real, {text.span(model.lost_s)} simulated",
        f"  placements  the first {found.placements_alike} of {found.placements} are the same",
    ]
    if found.otherwise:
        lines.append(f"  in another way end {len(found.otherwise)}: {', '.join(found.otherwise[:JOBS_SHOWN])}")
    return [plain(lines[0], "bold"), *map(plain, lines[1:])]


def _error(real: float, model: float) -> str:
    error = f", error {(model - real) / real:+.1%}" if abs(model - real) >= SAME_SECONDS and real else ""
    return f"{text.span(real)} real, {text.span(model)} simulated{error}"


def _first(found: Compared) -> list[Any]:
    first = found.first
    limits = (
        [plain(f"  limits or devices of members differ from pass {found.limits_since} on")]
        if found.limits_since
        else []
    )
    if first is None:
        if not found.passes:
            return [plain("  there is no recorded pass to compare with"), *limits]
        same = "the one recorded pass" if found.passes == 1 else f"all of the {found.passes} recorded passes"
        return [plain(f"  none: it decides the same in {same}"), *limits]
    where = f"in pass {first.seq}" if first.seq else "where the recording has no pass"
    compared = text.count(found.passes, "pass", "passes")
    when = f"  {where}, {moments.stamp(first.at_ns)}, on the state after {first.at_seq} ({compared} compared)"
    return [
        plain(when),
        *(plain(f"  recorded  {words}") for words in first.recorded or ("nothing",)),
        *(plain(f"  what if   {words}") for words in first.instead or ("nothing",)),
        *limits,
    ]


def _counted(found: WhatIf) -> list[str]:
    lines = [
        f"of jobs that run to an end in both simulations ({found.whole.recorded.jobs}; "
        f"{len(found.left_out)} left out), and the change; ~ is not more than the model's own error"
    ]
    for which, name in enumerate((found.recorded, found.other)):
        for end, title in (("", "NEVER END"), ("rejected", "REJECTED")):
            stuck: dict[str, list[str]] = {}
            for job in sorted(found.jobs, key=lambda job: job.job):
                if job.outcomes[which] == end:
                    stuck.setdefault(job.why[which], []).append(job.job)
            lines += [f"{title} under {name}: {_named(jobs)}{why and f': {why}'}" for why, jobs in stuck.items()]
    if found.away and any({"", "rejected"} & set(job.outcomes) for job in found.jobs):
        lines.append(
            "who never ends, or is refused, may lack nodes, not a policy: "
            f"{_named(list(found.away), 'node')} away when the recording ended, and so in both simulations from then on"
        )
    return lines


def _named(names: list[str], one: str = "job") -> str:
    more = f", and {len(names) - JOBS_SHOWN} more" if len(names) > JOBS_SHOWN else ""
    return f"{text.count(len(names), one)} ({', '.join(names[:JOBS_SHOWN])}{more})"


def _changes(found: WhatIf) -> Any:
    if not found.whole.recorded.jobs:
        return plain("  nothing: no job ran to an end in both simulations")
    groups = [found.whole, *(found.tenants if len(found.tenants) > 1 else ())]
    return _table(
        ("TENANT", "JOBS", "COMPLETION", "IN THE QUEUE", "FOR PHASES", "PREEMPTIONS", "GPU-H LOST", "WORK LOST"),
        [group_row(group) for group in groups if group.recorded.jobs],
        always=7,
    )


def _table(columns: tuple[str, ...], lines: list[tuple[str, ...]], *, always: int) -> Any:
    """Return a table; of the columns after the first `always` ones those that say nothing are left out."""
    kept = [
        number
        for number in range(len(columns))
        if number < always or any(line[number] not in NOTHING_TO_SAY for line in lines)
    ]
    return rows(tuple(columns[number] for number in kept), (tuple(line[number] for number in kept) for line in lines))


def group_row(group: Change) -> tuple[str, ...]:
    """Return the row of a group; of what is a sum, the model's error is that of all its jobs."""
    one, two, off = group.recorded, group.other, group.off or UNKNOWN
    return (
        group.name,
        str(one.jobs),
        _seconds(one.completion_s, two.completion_s, off.completion_s),
        _seconds(one.waiting_s, two.waiting_s, off.waiting_s),
        _seconds(one.asked_s, two.asked_s, off.asked_s),
        _whole(one.preemptions, two.preemptions, off.preemptions * one.jobs),
        _hours(one.lost_gpu_s, two.lost_gpu_s, off.lost_gpu_s * one.jobs),
        _seconds(one.lost_s, two.lost_s, off.lost_s * one.jobs),
    )


def _seconds(before: float, after: float, error: float) -> str:
    """Return what it would be, and by how much that differs; `~`: the model's error may have made the difference."""
    change = after - before
    if abs(change) < SAME_SECONDS:
        return text.span(after)
    return f"{text.span(after)} ({_mark(change, error)}{'+' if change > 0 else '-'}{text.span(abs(change))})"


def _mark(change: float, error: float) -> str:
    return "~" if abs(change) <= error + ROUNDED else ""


def _whole(before: int, after: int, error: float) -> str:
    return str(after) if before == after else f"{after} ({_mark(after - before, error)}{after - before:+d})"


def _hours(before_s: float, after_s: float, error_s: float) -> str:
    after, change = f"{after_s / 3600:.2f}", f"{(after_s - before_s) / 3600:+.2f}"
    return after if change in ("+0.00", "-0.00") else f"{after} ({_mark(after_s - before_s, error_s)}{change})"


def _jobs(found: WhatIf) -> list[Any]:
    differ = [job for job in found.jobs if _differs(job)]
    if not differ:
        ended = sum(all(job.outcomes) for job in found.jobs)
        none = f"of {text.count(ended, 'job')} that ended in both none differs by more than {SAME_SECONDS}s"
        return [plain(none if ended else "no job could be compared: none ended in both simulations", "bold")]
    shown = _table(
        ("JOB", "COMPLETION", "IN THE QUEUE", "FOR PHASES", "PREEMPTIONS", "GPU-H LOST", "WORK LOST", "", "TENANT"),
        [(*job_row(job), job.tenant if len(found.tenants) > 1 else "") for job in differ[:JOBS_SHOWN]],
        always=3,
    )
    title = f"jobs that differ most ({len(differ)} of {len(found.jobs)} differ)"
    return [plain(title, "bold"), shown]


def job_row(job: JobChange) -> tuple[str, ...]:
    """Return the row of a job; its own error is what the model made of that very job."""
    off = job.off or UNKNOWN
    return (
        job.job,
        _ends(job, off.completion_s),
        _seconds(*job.waiting_s, off.waiting_s),
        _seconds(*job.asked_s, off.asked_s),
        _whole(*job.preemptions, off.preemptions),
        _hours(*job.lost_gpu_s, off.lost_gpu_s),
        _seconds(*job.lost_s, off.lost_s),
        _marked(job),
    )


def _marked(job: JobChange) -> str:
    """Return what is to be known of its length, where it has one: who is refused under both does not work at all."""
    if set(job.outcomes) == {"rejected"}:
        return ""
    return "assumed" if job.assumed else "cut off" if job.censored else ""


def _differs(job: JobChange) -> bool:
    """Say whether it differs by more than nothing; when somebody is refused, or cancelled, means nothing."""
    if job.outcomes[0] == job.outcomes[1] and job.outcomes[0] in ("rejected", "cancelled"):
        return job.preemptions[0] != job.preemptions[1]
    before, after = job.completion_s
    ended = before is not None and after is not None and abs(after - before) >= SAME_SECONDS
    waited = any(abs(after - before) >= SAME_SECONDS for before, after in (job.waiting_s, job.asked_s))
    return ended or waited or job.outcomes[0] != job.outcomes[1] or job.preemptions[0] != job.preemptions[1]


def _ends(job: JobChange, error: float) -> str:
    """Return when it ends under both; one that was cut off takes at least so long."""
    before, after = job.completion_s
    at_least = ">= " if job.censored else ""
    if job.outcomes[0] == job.outcomes[1] and before is not None and after is not None:
        return at_least + _seconds(before, after, error)
    was, would_be = (
        f"{outcome or 'no end'}{'' if seconds is None else f' {text.span(seconds)}'}"
        for outcome, seconds in zip(job.outcomes, job.completion_s, strict=True)
    )
    return f"{at_least}{would_be} (was {was})"
