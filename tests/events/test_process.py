"""What a service writes to standard error: JSON alone, and a job's trace wherever a line speaks of a job."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import pytest
from tidegate_events import trace

JOB = "j-4k2mz7q5x3w6y2ab"


def lines_of(code: str) -> list[dict[str, Any]]:
    """Run a service's code in a process of its own; return its log lines."""
    start = "import structlog\nfrom tidegate_events.process import log_as\nlog_as('demo', 'd1')\n"
    start += "log = structlog.get_logger()\n"
    done = subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == ""
    return [json.loads(line) for line in done.stderr.splitlines()]


def test_a_line_about_a_job_names_its_trace() -> None:
    (line,) = lines_of(f"log.info('seen', job='{JOB}')")
    assert (line["job"], line["trace_id"]) == (JOB, trace.trace_id(JOB))
    assert (line["service"], line["instance"], line["event"], line["level"]) == ("demo", "d1", "seen", "info")


def test_a_line_about_a_sandbox_names_job_and_trace() -> None:
    first, second = lines_of(f"log.bind(sandbox='{JOB}.2.0').info('a')\nlog.info('b', sandbox='{JOB}.1.3', job='')")
    assert (first["job"], first["trace_id"]) == (JOB, trace.trace_id(JOB))
    assert "trace_id" not in second


def test_bound_context_counts_too() -> None:
    (line,) = lines_of(f"structlog.contextvars.bind_contextvars(sandbox='{JOB}.1.0')\nlog.warning('deep')")
    assert line["trace_id"] == trace.trace_id(JOB)


def test_a_line_about_no_job_has_no_trace() -> None:
    (line,) = lines_of("log.info('ready', sandbox='whatever', jobs=5)")
    assert not {"job", "trace_id"} & set(line)


def test_what_libraries_warn_of_is_json_too() -> None:
    code = "import logging, warnings\nlogging.getLogger('nats').error('slow %s', 'consumer')\n"
    code += "logging.getLogger('nats').info('chatter')\nwarnings.warn('old')"
    first, second = lines_of(code)
    assert (first["event"], first["logger"], first["text"], first["level"]) == (
        "library", "nats", "slow consumer", "error",
    )  # fmt: skip
    assert (second["logger"], second["level"]) == ("py.warnings", "warning")
    assert "old" in second["text"]


def test_a_crash_is_one_line_with_its_traceback() -> None:
    (line,) = lines_of("raise RuntimeError('no')")
    assert (line["event"], line["level"]) == ("crashed", "critical")
    assert "RuntimeError: no" in line["exception"]


def test_a_service_that_is_cancelled_from_within_has_crashed() -> None:
    """A parent's cancellation may be all that is left of what ended one of its tasks."""
    code = "import asyncio\nfrom tidegate_events.process import run_until_signalled\n"
    code += "async def serve():\n    raise asyncio.CancelledError\nrun_until_signalled(serve)"
    (line,) = lines_of(code)
    assert line["event"] == "crashed"
    assert "nobody asked it to end" in line["exception"]


STUBBORN = """
import asyncio, sys
from tidegate_events import process

async def swallow():
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            {on_cancel}

async def serve():
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(swallow())
        print("up", file=sys.stderr, flush=True)

process.log_as("demo", "d1")
process.run_until_signalled(serve)
"""


@pytest.mark.parametrize(
    ("on_cancel", "exit_code", "event"),
    [
        pytest.param("return", 0, "stopped_by_signal", id="it ends"),
        pytest.param(
            "swallow.times = getattr(swallow, 'times', 0) + 1\n            if swallow.times > 2: raise",
            0, "stopped_by_signal", id="it swallows two cancellations",
        ),
        pytest.param("pass", 70, "does_not_stop", id="it never ends"),
    ],
)  # fmt: skip
def test_a_signal_ends_a_service_whatever_swallows_its_cancellation(on_cancel: str, exit_code: int, event: str) -> None:
    code = STUBBORN.replace("{on_cancel}", on_cancel)
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == exit_code
    assert json.loads(said.splitlines()[-1])["event"] == event


def test_a_logger_outlives_a_stream_that_stood_in_for_standard_error() -> None:
    (line,) = lines_of(
        "import io, sys\nreal, sys.stderr = sys.stderr, io.StringIO()\nlog.info('into the stand-in')\n"
        "sys.stderr.close()\nsys.stderr = real\nlog.info('seen')"
    )
    assert line["event"] == "seen"
