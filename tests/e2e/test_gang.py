"""A gang on one node: its members start together, stop at one step when preempted, and resume together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tidegate.client import LogSelection

from tests.e2e.running import RunningStack

pytestmark = [pytest.mark.e2e, pytest.mark.isolation]

MEMBER = Path(__file__).parent / "gang"
SIZE = 3


def _spec(stack: RunningStack, name: str, cpu_millis: int, command: list[str], **more: object) -> dict[str, object]:
    resources = {"default": {"minimum": {"cpu_millis": cpu_millis, "memory_mib": 128}}}
    return {
        "name": name,
        "image": "host",
        "isolation": stack.record.level,
        "command": command,
        "resources": resources,
        "time_limit_seconds": 300,
        **more,
    }


def _stopped_at(stack: RunningStack, job: str) -> dict[int, int]:
    """Return the step at which each rank said it stopped, from the logs of the first attempt."""
    said: dict[int, int] = {}
    for rank in range(SIZE):
        chunks = stack.client.logs(job, LogSelection(attempt=1, rank=rank))
        text = "".join(chunk.text for chunk in chunks)
        for found in re.finditer(r"rank (\d+) stops at (\d+)", text):
            said[int(found[1])] = int(found[2])
    return said


def test_a_gang_stops_at_one_step_and_resumes_whole(stack: RunningStack) -> None:
    gang = _spec(stack, "gang", 300, ["python", "member.py"], gang_size=SIZE, priority=1)
    job = stack.client.submit(gang, workdir=MEMBER).job_id
    stack.until(lambda: stack.step(job) >= 30, "the gang's thirtieth step")
    urgent = _spec(stack, "urgent", 1500, ["python", "-c", "print('done')"], priority=50)
    stack.client.submit(urgent)
    (ended,) = stack.completed(job)

    assert ended["preemptions"] == 1
    assert ended["lost_steps"] == 0
    assert ended["result"]["step"] >= 400
    stopped = _stopped_at(stack, job)
    assert sorted(stopped) == list(range(SIZE)), stopped
    assert set(stopped.values()) == {ended["resumed_step"]}, "every rank stops at the step that was saved"
    for attempt in (1, 2):
        started = [e.rank for e in stack.events("SandboxStarted", job=job) if e.attempt == attempt]
        assert sorted(started) == list(range(SIZE)), "all members or none"
    stack.verify()
