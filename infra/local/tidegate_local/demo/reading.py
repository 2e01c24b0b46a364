"""What the demo reads back through the command line once both jobs have ended: history, read models, traces.

Every command is one that a user has; the demo asks no service behind its back.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import Counter

import msgspec
from tidegate.cli import spans

from tidegate_local import plan
from tidegate_local.demo.observed import CommandRun, JsonObject, Observed, ReadModels, TraceSeen
from tidegate_local.home import Home

COMMAND_SECONDS_MAX = 60.0
FOLLOW_SECONDS_MAX = 20.0
POLL_SECONDS = 0.2
COLUMNS = 200
VERIFY = ("tidegate", "history", "verify", "--json")
READ_MODELS = ("tidegate", "projections", "status", "--json")


def read_back(home: Home, seen: Observed) -> None:
    """Fill in what the commands answer; those that fail are checks that do not hold."""
    run = _record(home, seen, VERIFY)
    seen.verification = _object(run)
    seen.read_models = _follow(home, seen)
    for job in (seen.low, seen.high):
        found = spans.read(_object(_record(home, seen, ("tidegate", "trace", job, "--json"))) or _NO_SPANS)
        seen.traces[job] = TraceSeen(
            names=dict(Counter(span.name for span in found)),
            roots=sum(not span.parent_id for span in found),
            tree=_record(home, seen, ("tidegate", "trace", job)).output,
        )
    for argv in _others(seen.low):
        _record(home, seen, argv)


def _follow(home: Home, seen: Observed) -> ReadModels:
    """Wait until the read models are where the journal is, within a bound; return how far they are."""
    newest = max((entry.seq for entry in seen.events), default=0)
    deadline = time.monotonic() + FOLLOW_SECONDS_MAX
    while True:
        run = _run(home, READ_MODELS)
        models = _active(run)
        if (models.lag_frames == 0 and models.seq >= newest) or time.monotonic() > deadline:
            seen.commands.append(run)
            return models
        time.sleep(POLL_SECONDS)


def _active(run: CommandRun) -> ReadModels:
    try:
        generations = json.loads(run.output)
    except ValueError:
        return ReadModels()
    active = [generation for generation in generations if generation["state"] == "active"]
    return msgspec.convert(active[0], ReadModels) if active else ReadModels()


def _others(job: str) -> list[tuple[str, ...]]:
    return [
        ("tidegate", "status"),
        ("tidegate", "nodes", "--json"),
        ("tidegate", "jobs", "--json"),
        ("tidegate", "job", job, "--json"),
        ("tidegate", "logs", job),
        ("tidegate", "checkpoint", "ls", job, "--json"),
    ]


def _object(run: CommandRun) -> JsonObject:
    """Return the JSON object that a command printed; an empty one where it failed."""
    try:
        found: JsonObject = json.loads(run.output) if not run.exit_code else {}
    except ValueError:
        return {}
    return found


def _record(home: Home, seen: Observed, argv: tuple[str, ...]) -> CommandRun:
    run = _run(home, argv)
    seen.commands.append(run)
    return run


def _run(home: Home, argv: tuple[str, ...]) -> CommandRun:
    process = subprocess.run(
        [plan.console_script(argv[0]), *argv[1:]],
        env={**os.environ, "TIDEGATE_HOME": str(home.root), "COLUMNS": str(COLUMNS)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=COMMAND_SECONDS_MAX,
        check=False,
    )
    return CommandRun(argv=argv, exit_code=process.returncode, output=process.stdout.decode(errors="replace"))


_NO_SPANS: JsonObject = {"result": {"resourceSpans": []}}
