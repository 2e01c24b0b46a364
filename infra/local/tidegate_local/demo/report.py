"""What the demo shows: progress while it runs, then a timeline of both jobs, the checks, and one line for programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable

import msgspec
from rich.console import Console
from rich.table import Table

from tidegate_local.demo.checks import Check
from tidegate_local.demo.observed import Entry, JsonObject, Observed
from tidegate_local.leftovers import Leftover

UNISOLATED = "UNISOLATED"
SHOWN_LIVE = frozenset(
    {
        "JobSubmitted", "JobPlaced", "SandboxStarted", "JobStarted", "PreemptRequested", "CheckpointSaved",
        "CheckpointFailed", "SandboxExited", "JobSuspended", "JobResumed", "JobRequeued", "JobCompleted", "JobFailed",
        "JobRejected", "JobCancelled", "PlacementRejected", "NodeUnreachable", "NodeLost",
    }
)  # fmt: skip
TIMELINE_ROWS_MAX = 120
TRACE_ROWS_MAX = 36


class JobLine(msgspec.Struct, frozen=True, kw_only=True):
    """One job in the JSON line."""

    job_id: str
    trace_id: str
    state: str
    mean_return: float | None
    preemptions: int
    resumed_step: int | None
    lost_steps: int


class DemoLine(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON line, printed last. `submit_to_running_ms` is that of the first job."""

    ok: bool
    jobs: list[JobLine]
    passes: int
    decisions: int
    decisions_verified: int
    events: int
    wall_seconds: float
    submit_to_running_ms: int | None
    leftovers: int


class Reporter:
    """Prints for people, to stderr when stdout belongs to a program. Every line says so where nothing is isolated."""

    def __init__(self, *, level: str, as_json: bool) -> None:
        self._console = Console(stderr=as_json, highlight=False, width=None if sys.stdout.isatty() else 140)
        self._label = f"[bold yellow]{UNISOLATED}[/] " if level == "unisolated" else ""
        self._began = time.monotonic()
        self._names: dict[str, str] = {}

    def say(self, text: str) -> None:
        """Print one line with the time since the start."""
        self._console.print(f"[dim]{time.monotonic() - self._began:6.1f} s[/] {self._label}{text}")

    def tell(self, kind: str, facts: JsonObject) -> None:
        """Print what the scenario tells, as far as a watcher wants to see it."""
        if kind == "submitted":
            self._names[facts["job"]] = facts["name"]
            self.say(f"[bold]{facts['name']}[/] submitted: job {facts['job']}, trace {facts['trace_id']}")
        elif kind == "event":
            entry: Entry = facts["entry"]
            if entry.kind in SHOWN_LIVE and entry.kind != "JobSubmitted":
                self.say(f"{self._name(entry.job_id) or entry.node} [cyan]{entry.kind}[/] {story(entry)}")
        elif kind == "progress":
            self.say("[dim]" + "   ".join(_state(self._name(job), detail) for job, detail in facts.items()) + "[/]")
        elif kind == "gateway_away":
            self.say(f"[yellow]the gateway does not answer[/] ({facts['error']})")

    def show(self, seen: Observed, checks: list[Check], left: list[Leftover]) -> None:
        """Print the timeline of both jobs, every check, and what was left behind."""
        for job in (seen.low, seen.high):
            self._console.print(self._timeline(seen, job))
        for job in (seen.low, seen.high):
            self._show_trace(seen, job)
        table = Table(title=f"{self._label}What was checked", title_justify="left")
        for column in ("", "claim", "seen"):
            table.add_column(column, overflow="fold")
        for check in checks:
            table.add_row("[green]ok[/]" if check.ok else "[bold red]NO[/]", check.claim, check.detail)
        table.add_row(
            "[green]ok[/]" if not left else "[bold red]NO[/]",
            "nothing is left running, mounted, in cgroups or listening",
            "; ".join(f"{item.kind} {item.what}" for item in left) or "0 leftovers",
        )
        self._console.print(table)

    def _show_trace(self, seen: Observed, job: str) -> None:
        trace = seen.traces.get(job)
        if trace is None or not trace.tree:
            return
        title = f"{self._name(job)}: where its time went, trace {seen.jobs[job]['trace_id']}, {trace.spans} spans"
        self._console.print(f"{self._label}[bold]{title}[/]")
        rows = [row.rstrip() for row in trace.tree.splitlines() if row.startswith((" ", "+"))]
        for row in rows[:TRACE_ROWS_MAX]:
            self._console.print(row, markup=False, no_wrap=True, overflow="ellipsis")
        if len(rows) > TRACE_ROWS_MAX:
            self._console.print(f"  ... {len(rows) - TRACE_ROWS_MAX} more rows")
        for how in (
            f"tidegate trace {job}",
            f"tidegate timeline {job} --perfetto FILE",
            f"{seen.gateway_url}/api/v3/traces/{seen.jobs[job]['trace_id']}, which answers as Jaeger does",
        ):
            self._console.print(f"{self._label}[dim]while its stack runs: {how}[/]", soft_wrap=True)

    def _timeline(self, seen: Observed, job: str) -> Table:
        detail = seen.jobs[job]
        title = f"{self._label}{self._name(job)}: job {job}, trace {detail['trace_id']}, {detail['state']}"
        table = Table(title=title, title_justify="left")
        for column in ("at", "event", "what"):
            table.add_column(column, overflow="fold")
        entries = seen.of(job)
        began = entries[0].at_ns if entries else 0
        rows = list(_folded(entries, began))
        for row in rows[:TIMELINE_ROWS_MAX]:
            table.add_row(*row)
        if len(rows) > TIMELINE_ROWS_MAX:
            table.add_row("", "...", f"{len(rows) - TIMELINE_ROWS_MAX} more: tidegate job {job}")
        return table

    def _name(self, job: str) -> str:
        return self._names.get(job, job)


def _folded(entries: Iterable[Entry], began_ns: int) -> Iterable[tuple[str, str, str]]:
    """Yield a row for each event; runs of phases and quotas become one row each, for a job has hundreds."""
    phases: list[Entry] = []
    for entry in entries:
        if entry.kind in {"PhaseChanged", "QuotaChanged", "QuotaApplied"}:
            phases.append(entry)
            continue
        if phases:
            yield _phases_row(phases, began_ns)
            phases = []
        yield _when(entry.at_ns, began_ns), entry.kind, story(entry)
    if phases:
        yield _phases_row(phases, began_ns)


def _phases_row(run: list[Entry], began_ns: int) -> tuple[str, str, str]:
    changes = [entry for entry in run if entry.kind == "PhaseChanged"]
    steps = [entry.data["step"] for entry in changes if entry.data.get("step") is not None]
    names = sorted({str(entry.data.get("phase")) for entry in changes})
    spread: dict[str, set[int]] = {}
    for entry in run:
        if entry.kind == "QuotaApplied":
            for quota in entry.data["quotas"]:
                spread.setdefault(quota["component"], set()).add(quota["cpu_millis"])
    cpu = ", ".join(f"{name} {'/'.join(map(str, sorted(values)))} m" for name, values in sorted(spread.items()))
    updates = f"updates {min(steps)} to {max(steps)}" if steps else ""
    parts = (f"{len(changes)} changes ({', '.join(names)})" if changes else "", updates, f"CPU: {cpu}" if cpu else "")
    return _when(run[0].at_ns, began_ns), "phases", "; ".join(filter(None, parts))


def story(entry: Entry) -> str:
    """Return what matters of an event in a few words."""
    tell = _STORIES.get(entry.kind)
    if tell is not None:
        return tell(entry)
    return f"attempt {entry.attempt}" if entry.attempt is not None else ""


def _sandbox(entry: Entry) -> str:
    return f"attempt {entry.attempt} on {entry.node}: " + (entry.data.get("outcome") or f"level {entry.data['level']}")


def _placed(entry: Entry) -> str:
    nodes = ", ".join(member["node"] for member in entry.data["members"])
    resume = entry.data.get("resume")
    return f"attempt {entry.attempt} on {nodes}" + (f", to continue at step {resume['step']}" if resume else "")


def _preempt(entry: Entry) -> str:
    return f"for {entry.data['for_job']}, {entry.data['grace_seconds']} s to save and leave"


def _saved(entry: Entry) -> str:
    checkpoint = entry.data["checkpoint"]
    layers = checkpoint.get("layers", [])
    size = sum(layer["size_bytes"] for layer in layers)
    return f"step {checkpoint['step']}, {', '.join(layer['name'] for layer in layers)}, {size / 1024:.0f} KiB"


def _verified(entry: Entry) -> str:
    return f"every byte read back, {entry.data['size_bytes'] / 1024:.0f} KiB"


def _left(entry: Entry) -> str:
    return f"at step {entry.data.get('step')}, {entry.data.get('lost_steps', 0)} steps lost"


def _resumed(entry: Entry) -> str:
    return f"at step {entry.data['step']}"


def _completed(entry: Entry) -> str:
    result = entry.data.get("result", {})
    return f"mean return {result.get('mean_return')} over {result.get('episodes')} episodes"


_STORIES: dict[str, Callable[[Entry], str]] = {
    "SandboxStarted": _sandbox,
    "SandboxExited": _sandbox,
    "JobPlaced": _placed,
    "PreemptRequested": _preempt,
    "CheckpointSaved": _saved,
    "CheckpointVerified": _verified,
    "JobSuspended": _left,
    "JobResumed": _resumed,
    "JobCompleted": _completed,
}


def _when(at_ns: int, began_ns: int) -> str:
    return f"{(at_ns - began_ns) / 1e9:.2f} s"


def _state(name: str, detail: JsonObject) -> str:
    where = f", {detail['phase']}" if detail.get("phase") else ""
    step = f", update {detail['step']}" if detail.get("step") is not None else ""
    return f"{name}: {detail['state']}{where}{step}"


def line(seen: Observed, checks: list[Check], left: list[Leftover]) -> DemoLine:
    """Return the JSON line."""
    report = seen.verification
    return DemoLine(
        ok=bool(checks) and all(check.ok for check in checks) and not left,
        jobs=[_job_line(seen.jobs[job]) for job in (seen.low, seen.high) if job in seen.jobs],
        passes=report.get("passes", 0),
        decisions=report.get("decisions", 0),
        decisions_verified=report.get("decisions_verified", 0),
        events=len(seen.events),
        wall_seconds=round(seen.wall_seconds, 1),
        submit_to_running_ms=seen.jobs.get(seen.low, {}).get("submit_to_running_ms"),
        leftovers=len(left),
    )


def _job_line(detail: JsonObject) -> JobLine:
    return JobLine(
        job_id=detail["job_id"],
        trace_id=detail["trace_id"],
        state=detail["state"],
        mean_return=(detail.get("result") or {}).get("mean_return"),
        preemptions=detail["preemptions"],
        resumed_step=detail["resumed_step"],
        lost_steps=detail["lost_steps"],
    )
