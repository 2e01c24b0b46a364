"""`tidegate job`: everything about one job: where it is, why it waits, what happened to it; and `tidegate job set`."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tidegate.cli import complete, line, moments, output, text, timeline
from tidegate.cli.commands.job_set import job_set
from tidegate.cli.connect import connect
from tidegate.cli.states import styled
from tidegate.cli.wording import short


class _ShowsByDefault(TyperGroup):
    """A group in which what is no sub-command is the job to show: `tidegate job JOB`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `show` before arguments that name no sub-command."""
        known = args and (args[0] in self.commands or args[0] in ctx.help_option_names)
        parsed: list[str] = super().parse_args(ctx, args if known or not args else ["show", *args])
        return parsed


app = typer.Typer(
    cls=_ShowsByDefault,
    no_args_is_help=True,
    subcommand_metavar="JOB [--all] | set JOB priority|limit VALUE",
    help="Show a job in detail; or set its priority or time limit.",
)
app.command("set")(job_set)


@app.command("show")
def job(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's id.", autocompletion=complete.jobs)],
    everything: Annotated[bool, typer.Option("--all", help="Show every event; sum no routine up.")] = False,
    as_json: output.JsonFlag = False,
) -> None:
    """Show a job in detail: state, why it waits, attempts, quotas, and its timeline since submission.

    \b
    Examples:
      tidegate job j-4k2mz7q5x3w6y2ab
      tidegate job j-4k2mz7q5x3w6y2ab --all
      tidegate job j-4k2mz7q5x3w6y2ab --json | jq .why
    """
    with connect() as client, output.Progress(f"Asking for {job}"):
        detail = client.job(job)
    if as_json:
        output.print_document(detail)
        return
    now_ns = time.time_ns()
    output.show(_facts(detail, now_ns))
    if detail["attempts"]:
        output.show("", _attempts(detail["attempts"]))
    if _quota_rows(detail):
        output.show("", _quotas(detail))
    output.show("", timeline.render(detail, everything=everything, now_ns=now_ns))


def _facts(detail: dict[str, Any], now_ns: int) -> Any:
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("job", f"{detail['job_id']} ({detail['name']})")
    table.add_row("state", styled(detail["state"]))
    if detail.get("why"):
        table.add_row("why", _why(detail["why"], now_ns))
    elif detail["reasons"] and detail["state"] != "completed":
        table.add_row("last decision", text.reasons(detail["reasons"]))
    table.add_row("tenant", f"{detail['tenant']}, submitted by {detail['submitter']}")
    if detail["asked"] or detail["held"]:
        table.add_row("asked", _asked(detail, now_ns))
    table.add_row("priority", f"{_priority(detail)}, isolation {detail['isolation']}, gang of {detail['gang_size']}")
    if detail["time_limit_seconds"] is not None or detail["spec"]["time_limit_seconds"] is not None:
        table.add_row("time limit", _limit(detail))
    table.add_row("age", _times(detail, now_ns))
    table.add_row("trace", detail["trace_id"])
    if detail["phase"] or detail["step"] is not None:
        done = detail["progress_millis"]
        progress = "" if done is None else f", {done / 10:g}% done"
        table.add_row("phase", f"{text.cell(detail['phase'])}, step {text.cell(detail['step'])}{progress}")
    table.add_row("preempted", _preempted(detail))
    table.add_row("checkpoint", _checkpoint(detail))
    if detail["result"]:
        table.add_row("result", text.amounts(detail["result"]))
    if detail["exit"] and detail["state"] in ("failed", "cancelled"):
        table.add_row("exit", _exit(detail["exit"]))
    if detail["state"] == "failed" and detail["attempt"]:
        table.add_row("look at", f"tidegate logs {detail['job_id']} --attempt {detail['attempt']} --tail 20")
    return table


_ASKED = {
    "HoldRequested": "held by",
    "ReleaseRequested": "released by",
    "SuspendRequested": "suspended by",
    "ResumeRequested": "resumed by",
    "RequeueRequested": "requeued by",
}


def _asked(detail: dict[str, Any], now_ns: int) -> str:
    """Return what somebody asked last of the job, and whether it is held."""
    last = detail["asked"]
    said = "held" if detail["held"] else ""
    if last is None:
        return said
    why = f": {last['note']}" if last["note"] else ""
    words = f"{_ASKED.get(last['kind'], last['kind'])} {last['actor']} {text.since(last['at_ns'], now_ns)} ago{why}"
    return f"{said}; {words}" if said and last["kind"] != "HoldRequested" else words


def _priority(detail: dict[str, Any]) -> str:
    submitted = detail["spec"]["priority"]
    now = str(detail["priority"])
    return now if detail["priority"] == submitted else f"{now} (submitted with {submitted})"


def _limit(detail: dict[str, Any]) -> str:
    now, submitted = (_span(value) for value in (detail["time_limit_seconds"], detail["spec"]["time_limit_seconds"]))
    return now if now == submitted else f"{now} (submitted with {submitted})"


def _span(seconds: int | None) -> str:
    return "none" if seconds is None else text.span(seconds)


def _why(why: dict[str, Any], now_ns: int) -> str:
    said = text.reasons(why["reasons"]) or "not decided yet"
    if why.get("position") is None:
        return said
    return f"place {why['position']} in the queue; {said}; {line.start_in_words(why, now_ns)}"


def _times(detail: dict[str, Any], now_ns: int) -> str:
    began = detail["submitted_at_ns"]
    parts = [f"submitted {text.since(began, now_ns)} ago ({moments.date_and_time(began)})"]
    if detail["submit_to_running_ms"] is not None:
        parts.append(f"ran after {text.span(detail['submit_to_running_ms'] / 1000)}")
    if detail["ended_at_ns"] is not None:
        parts.append(f"ended after {text.since(began, detail['ended_at_ns'])}")
    return ", ".join(parts)


def _preempted(detail: dict[str, Any]) -> str:
    if not detail["preemptions"] and detail["resumed_step"] is None:
        return "never"
    again = "" if detail["resumed_step"] is None else f", last resumed at step {detail['resumed_step']}"
    times = "once" if detail["preemptions"] == 1 else f"{detail['preemptions']} times"
    return f"{times}{again}, {detail['lost_steps']} steps lost"


def _checkpoint(detail: dict[str, Any]) -> str:
    newest = detail["checkpoint"]
    if newest is None:
        return "none yet"
    kept = f"{short(newest['id'])} at step {newest['step']}, {newest['status']}, {text.size(newest['size_bytes'])}"
    return f"{kept} ({detail['checkpoints']} in all)"


def _exit(end: dict[str, Any]) -> str:
    parts = [end["outcome"]]
    parts += [f"exit code {end['exit_code']}"] if end["exit_code"] is not None else []
    parts += [f"signal {end['signal']}"] if end["signal"] is not None else []
    parts += ["out of memory"] if end["oom"] else []
    parts += [end["detail"]] if end["detail"] else []
    return ", ".join(parts)


def _attempts(attempts: list[dict[str, Any]]) -> Any:
    table = output.table()
    for name in ("ATTEMPT", "STATE", "NODES", "RAN", "FROM STEP", "LOST", "LEVEL"):
        table.add_column(name, no_wrap=name != "NODES", overflow="fold")
    for attempt in attempts:
        members = attempt["members"]
        origin = attempt["resumed_from"]
        table.add_row(
            str(attempt["attempt"]),
            styled(attempt["state"]),
            text.cell(", ".join(dict.fromkeys(member["node"] for member in members))),
            _ran(attempt),
            text.cell(origin["step"] if origin else None),
            str(attempt["lost_steps"]),
            text.cell(", ".join(dict.fromkeys(member["level"] for member in members if member["level"]))),
        )
    return table


def _ran(attempt: dict[str, Any]) -> str:
    if attempt["started_at_ns"] is None:
        return text.NOTHING
    return text.since(attempt["started_at_ns"], attempt["ended_at_ns"] or time.time_ns())


def _quota_rows(detail: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Return (rank, quota) of what runs now."""
    if not detail["attempts"] or detail["attempts"][-1]["ended_at_ns"] is not None:
        return []
    return [(member["rank"], quota) for member in detail["attempts"][-1]["members"] for quota in member["quotas"]]


def _quotas(detail: dict[str, Any]) -> Any:
    table = output.table()
    for name in ("RANK", "COMPONENT", "REPLICAS", "CPU (each)", "MEM (each)", "IN THE KERNEL"):
        table.add_column(name)
    for rank, quota in _quota_rows(detail):
        desired = quota["desired"]
        table.add_row(
            str(rank),
            quota["component"],
            str(quota["replicas"]),
            text.cpus(desired["cpu_millis"]),
            text.mib(desired["memory_mib"]),
            _observed(quota),
        )
    return table


def _observed(quota: dict[str, Any]) -> str:
    seen = quota["observed"]
    if seen is None:
        return "not yet"
    if quota["enforced"] is False:
        return "not enforced on this node"
    if seen == quota["desired"]:
        return "the same"
    return f"{text.cpus(seen['cpu_millis'])} CPU, {text.mib(seen['memory_mib'])}"
