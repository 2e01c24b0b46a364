"""The entry point of `tidegate`: puts the commands together and ends with their exit code."""

from __future__ import annotations

import os
import sys

import typer

from tidegate.cli import exits
from tidegate.cli.commands import (
    acts,
    cancel,
    checkpoint,
    events,
    job,
    jobs,
    logs,
    maintenance,
    node,
    nodes,
    queue,
    status,
    submit,
    tier_upkeep,
    tiers,
    top,
    trace,
)
from tidegate.cli.root import RootGroup

_JOBS, _CLUSTER, _HISTORY = "Jobs", "Cluster", "History"

app = typer.Typer(
    cls=RootGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Run agent training jobs: isolated, preempted gently, every decision explained.

    [bold]First steps[/bold]

      tidegate up                          start a local stack
      tidegate submit job.json --wait      run a job and wait for its end
      tidegate job j-4k2mz7q5x3w6y2ab      what happened to it, and why it waits
      tidegate logs -f j-4k2mz7q5x3w6y2ab  what it prints

    [bold]When something is wrong[/bold]

      tidegate status                      does everything work, does somebody lead?
      tidegate top                         what runs where, how fast, and who waits
      tidegate jobs --start                why each job waits, and when it may start
      tidegate nodes -R                    which nodes take no jobs, and why
      tidegate events -f                   what happens now

    The gateway: TIDEGATE_URL, else the local stack (its directory: TIDEGATE_HOME).
    Every command takes --json: one document on stdout and nothing else.

    [bold]Exit codes[/bold]

      0 ok   1 the job or check failed   2 usage   3 stack or gateway missing
      4 not found   5 refused by the gateway   130 interrupted
    """,
)
app.command("status", rich_help_panel=_CLUSTER)(status.status)
app.command("top", rich_help_panel=_CLUSTER)(top.top)
app.command("nodes", rich_help_panel=_CLUSTER)(nodes.nodes)
app.command("submit", rich_help_panel=_JOBS)(submit.submit)
app.command("jobs", rich_help_panel=_JOBS)(jobs.jobs)
app.add_typer(job.app, name="job", rich_help_panel=_JOBS)
app.command("logs", rich_help_panel=_JOBS)(logs.logs)
app.command("trace", rich_help_panel=_JOBS)(trace.trace)
app.command("timeline", rich_help_panel=_JOBS)(trace.show_timeline)
app.command("cancel", rich_help_panel=_JOBS)(cancel.cancel)
app.command("hold", rich_help_panel=_JOBS)(acts.hold)
app.command("release", rich_help_panel=_JOBS)(acts.release)
app.command("suspend", rich_help_panel=_JOBS)(acts.suspend)
app.command("resume", rich_help_panel=_JOBS)(acts.resume)
app.command("requeue", rich_help_panel=_JOBS)(acts.requeue)
app.command("events", rich_help_panel=_HISTORY)(events.events)
checkpoint.app.command("show")(tiers.show)
checkpoint.app.command("verify")(tiers.verify)
checkpoint.app.command("diff")(tiers.diff)
checkpoint.app.command("export")(tiers.export)
checkpoint.app.command("pin")(tier_upkeep.pin)
checkpoint.app.command("gc")(tier_upkeep.gc)
checkpoint.app.command("scrub")(tier_upkeep.scrub)
checkpoint.app.command("repair")(tier_upkeep.repair)
app.add_typer(checkpoint.app, name="checkpoint", rich_help_panel=_JOBS)
app.add_typer(queue.app, name="queue", rich_help_panel=_CLUSTER)
app.add_typer(node.app, name="node", rich_help_panel=_CLUSTER)
app.add_typer(maintenance.app, name="maintenance", rich_help_panel=_CLUSTER)


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        typer.main.get_command(app)(args=arguments, prog_name="tidegate")
        code = exits.OK
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    except KeyboardInterrupt:
        code = exits.INTERRUPTED
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = exits.BROKEN_PIPE
    if code == exits.BROKEN_PIPE:
        # What is still buffered must not fail once more when the interpreter shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def main() -> None:
    """Run the command line of this process."""
    sys.exit(run(sys.argv[1:]))
