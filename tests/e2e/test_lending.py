"""Two jobs whose memory does not fit the node together take turns: what one lends is leased, recalled, and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.running import JsonObject, RunningStack

pytestmark = [pytest.mark.e2e, pytest.mark.isolation, pytest.mark.timeout(600)]

MEMORY_MIB = 640
LOW_MIB, HIGH_MIB = 100, 400
USED_MIB = 300  # in the high phase, really: under the limit of the low one its process would be killed
RECALLS = 2

OWNER = f"""
import time, tidegate
job = tidegate.init()
turn = 0
while not job.stop_ordered:
    turn += 1
    with job.phase("learning"):
        memory = bytearray(b"x") * ({USED_MIB} << 20)
        time.sleep(1)
        del memory
    time.sleep(4)
job.save(state={{"turn": turn}}, step=turn)
job.exit_suspended()
"""

BORROWER = f"""
import time, tidegate
job = tidegate.init()
recalls, entered, heard = 0, 0, []
job.on_hand_back(heard.append)
while recalls < {RECALLS}:
    with job.phase("learning"):
        entered += 1
        memory = bytearray(b"x") * ({USED_MIB} << 20)
        while not job.should_hand_back():
            time.sleep(0.05)
        recalls += 1
        del memory
job.finish({{"recalls": recalls, "entered": entered, "heard": len(heard)}})
"""


@pytest.fixture
def tight(tmp_path: Path) -> Iterator[RunningStack]:
    """Yield a stack of one node with little memory; afterwards nothing of it may be left."""
    stack = RunningStack.start(tmp_path / "home", "--memory-mib", str(MEMORY_MIB))
    try:
        yield stack
    finally:
        left = [] if stack.ended else stack.end()
    assert left == []


def submit(stack: RunningStack, name: str, script: str, **more: object) -> str:
    phases = {"default": LOW_MIB, "learning": HIGH_MIB}
    spec: JsonObject = {
        "name": name,
        "isolation": stack.record.level,
        "phase_entry": "asked",
        "components": [
            {
                "name": "main",
                "command": ["python", "-c", script],
                "resources": {
                    phase: {"minimum": {"cpu_millis": 300, "memory_mib": mib}} for phase, mib in phases.items()
                },
            }
        ],
        **more,
    }
    return stack.client.submit(spec).job_id


def test_an_owner_and_a_borrower_take_turns_with_memory(tight: RunningStack) -> None:
    assert LOW_MIB + HIGH_MIB < MEMORY_MIB < 2 * HIGH_MIB
    owner = submit(tight, "owner", OWNER)
    borrower = submit(tight, "borrower", BORROWER, borrows=True)
    tight.until(lambda: tight.events("HandBackRequested", job=borrower), "the first recall")
    tight.kill("executor")  # asks and answers outlive it
    (ended,) = tight.completed(borrower)
    assert ended["result"] == {"recalls": RECALLS, "entered": RECALLS, "heard": RECALLS}
    tight.client.cancel(owner)
    tight.until(lambda: tight.client.job(owner)["state"] == "cancelled", "the owner ended")

    asked = tight.events("PhaseRequested", job=borrower)
    assert [entry.data["phase"] for entry in asked if entry.data["phase"]].count("learning") >= RECALLS
    granted = [entry for entry in tight.events("QuotaChanged", job=borrower) if entry.data.get("phase")]
    assert [entry.data["phase"] for entry in granted] == ["learning"] * RECALLS
    assert all(entry.data["leased"]["memory_mib"] > 0 for entry in granted)
    recalled = tight.events("HandBackRequested", job=borrower)
    assert [entry.data["for_job"] for entry in recalled] == [owner] * RECALLS
    for job in (owner, borrower):
        assert tight.events("PreemptRequested", job=job) == []
        assert [entry.data.get("oom", False) for entry in tight.events("SandboxExited", job=job)] == [False]
        assert_entered_when_it_could(tight, job)
    assert_never_beyond(tight, {owner, borrower})
    tight.verify()


def assert_entered_when_it_could(stack: RunningStack, job: str) -> None:
    """Each time the job entered its phase it had asked, was granted it, and the kernel held the limits for it."""
    asked = granted = False
    held_mib = entered = 0
    for entry in stack.events("PhaseRequested", "QuotaChanged", "QuotaApplied", "PhaseChanged", job=job):
        if entry.kind == "PhaseRequested":
            asked = entry.data["phase"] == "learning"
        elif entry.kind == "QuotaChanged":
            granted = asked and entry.data.get("phase") == "learning"
        elif entry.kind == "QuotaApplied":
            held_mib = entry.data["quotas"][0]["memory_mib"]
        elif entry.data["phase"] == "learning":
            assert (asked, granted) == (True, True), stack.story()
            assert held_mib >= HIGH_MIB, stack.story()
            asked = granted = False
            entered += 1
    assert entered >= RECALLS


def assert_never_beyond(stack: RunningStack, jobs: set[str]) -> None:
    """The limits that the kernel held, as the journal tells of them, always fitted the node together."""
    held: dict[str, int] = {}
    for entry in stack.events("QuotaApplied", "SandboxExited"):
        if entry.job_id in jobs:
            gone = entry.kind == "SandboxExited"
            held[entry.job_id] = 0 if gone else sum(quota["memory_mib"] for quota in entry.data["quotas"])
            assert sum(held.values()) <= MEMORY_MIB, stack.story()
    assert held.keys() == jobs
