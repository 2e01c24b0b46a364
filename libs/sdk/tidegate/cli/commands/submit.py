"""`tidegate submit`: hand a job in, and wait for its end where asked."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli import exits, output, text, verdict
from tidegate.cli.connect import connect

if TYPE_CHECKING:
    from tidegate.client import Client, Submission


def submit(  # noqa: PLR0917
    spec: Annotated[Path, typer.Argument(metavar="JOB.json", help="The job's specification.")],
    tenant: Annotated[str | None, typer.Option(help="Submit for this tenant, whatever the file says.")] = None,
    priority: Annotated[int | None, typer.Option(help="With this priority, whatever the file says.")] = None,
    workdir: Annotated[Path | None, typer.Option(help="Send this directory, whatever the file says.")] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="The same key gives the same job: safe to repeat from scripts.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end; exit with 1 unless it completed.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Submit nothing: say where and when it would start, displacing whom.")
    ] = False,
    timeout: Annotated[float | None, typer.Option(min=0, help="Wait at most so many seconds.")] = None,
    as_json: output.JsonFlag = False,
) -> None:
    """Submit a job. Its working directory is packed, and sent where the gateway has not got it yet.

    Left out of the working directory: .git, .venv, __pycache__. Git commit, digest of uncommitted changes and the
    command line are recorded; secrets are named in the file, never valued.

    With --dry-run it exits with 1 where the job could never run here.

    \b
    Examples:
      tidegate submit job.json
      tidegate submit job.json --priority 80 --wait
      tidegate submit job.json --priority 80 --dry-run
      tidegate submit job.json --tenant lab-a --idempotency-key nightly-17
      id=$(tidegate submit job.json --json | jq -r .job_id)
    """
    overrides = {name: value for name, value in (("tenant", tenant), ("priority", priority)) if value is not None}
    if dry_run:
        _ask(spec, workdir, overrides, as_json=as_json)
        return
    with connect() as client:
        with output.Progress("Packing the working directory") as progress:

            def on_upload(sent: int, total: int) -> None:
                progress.update(f"Sending the working directory: {text.size(sent)} of {text.size(total)}")

            accepted = client.submit(spec, workdir, idempotency_key, overrides, on_upload)
        document: dict[str, Any] = {
            "job_id": accepted.job_id,
            "trace_id": accepted.trace_id,
            "tenant": accepted.tenant,
            "state": accepted.state,
        }
        if not as_json:
            print(f"{accepted.job_id}  {accepted.state}  trace {accepted.trace_id}", flush=True)
        end = _wait(client, accepted, timeout) if wait or timeout is not None else None
    if end is not None:
        document.update({name: end[name] for name in ("state", "attempt", "preemptions", "result", "exit")})
    if as_json:
        output.print_document(document)
    elif end is not None:
        print(f"{end['job_id']}  {end['state']}  {text.amounts(end['result'])}".rstrip())
    if end is not None and end["state"] != "completed":
        raise typer.Exit(exits.FAILED)


def _ask(spec: Path, workdir: Path | None, overrides: dict[str, Any], *, as_json: bool) -> None:
    """Say what would become of the job."""
    with connect() as client, output.Progress("Asking the scheduler"):
        found = client.dry_run(spec, workdir, overrides)
    if as_json:
        output.print_document(found)
    else:
        output.show(*verdict.render(found))
    if found["verdict"] == "never":
        raise typer.Exit(exits.FAILED)


def _wait(client: Client, accepted: Submission, timeout_seconds: float | None) -> dict[str, Any]:
    began, shown = time.monotonic(), ""
    with output.Progress(f"{accepted.job_id}: {accepted.state}") as progress:

        def on_seen(job: dict[str, Any]) -> None:
            nonlocal shown
            where = [job["state"]]
            where += [f"phase {job['phase']}"] if job["phase"] else []
            where += [f"step {job['step']}"] if job["step"] is not None else []
            line = f"{job['job_id']}: {', '.join(where)} ({text.span(time.monotonic() - began)})"
            progress.update(line, at_once=job["state"] != shown)
            shown = job["state"]

        return client.wait(accepted.job_id, timeout_seconds=timeout_seconds, on_seen=on_seen)
