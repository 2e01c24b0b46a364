"""Logs of the whole stack: what a job wrote outlives its sandbox, and what services wrote names the job's trace."""

from __future__ import annotations

import json
import re
from typing import Any

from tidegate_events import trace

from tests.e2e.running import RunningStack, command

NOT_OURS = frozenset({"nats.log", "postgres.log"})
LINES = 200_000
LINE = "%09d " + "x" * 90
NEED: dict[str, Any] = {"default": {"minimum": {"cpu_millis": 500, "memory_mib": 128}}}
CHATTER = f"""
import os, sys
print("attempt", os.environ["TIDEGATE_ATTEMPT"], flush=True)
print("to stderr", file=sys.stderr, flush=True)
if os.environ["TIDEGATE_ATTEMPT"] == "1":
    sys.exit(3)
sys.stdout.write("".join("{LINE}\\n" % number for number in range({LINES})))
"""


def test_logs_outlive_the_sandbox_bounded_and_marked(stack: RunningStack) -> None:
    spec = {
        "name": "chatter", "command": ["python", "-c", CHATTER], "resources": NEED,
        "isolation": stack.record.level, "restart": {"max_attempts": 2, "backoff_seconds": 1},
    }  # fmt: skip
    job = stack.client.submit(spec).job_id
    followed = command(stack.home, "tidegate", "logs", "-f", job)
    stack.completed(job)
    sandboxes = stack.home.root / "nodes" / "local" / "sandboxes"
    stack.until(lambda: not list(sandboxes.glob("j-*")), "the sandboxes are gone")
    first = command(stack.home, "tidegate", "logs", job, "--attempt", "1")
    assert first.stdout == "attempt 1\nto stderr\n"
    second = command(stack.home, "tidegate", "logs", job)
    lines = second.stdout.splitlines()
    assert lines[:2] == ["attempt 2", "to stderr"]
    assert lines[-1] == LINE % (LINES - 1)
    missing = re.fullmatch(r"--- (\d+) bytes are missing here: the log is bounded ---\n", second.stderr)
    assert missing is not None
    whole = len("attempt 2\nto stderr\n") + LINES * (len(LINE % 0) + 1)
    assert len(second.stdout) + int(missing[1]) == whole
    assert command(stack.home, "tidegate", "logs", job, "--tail", "1").stdout == LINE % (LINES - 1) + "\n"
    assert followed.stdout.splitlines()[-1] == lines[-1]
    _assert_services_name_the_trace(stack, job)


def _assert_services_name_the_trace(stack: RunningStack, job: str) -> None:
    speaking = set()
    for file in stack.home.logs_dir.glob("*.log"):
        if file.name in NOT_OURS:
            continue
        for text in file.read_text().splitlines():
            line = json.loads(text)
            if job in text:
                assert (line["job"], line["trace_id"]) == (job, trace.trace_id(job)), text
            if line.get("job") == job:
                speaking.add(line["service"])
    assert {"gateway", "scheduler", "executor"} <= speaking
