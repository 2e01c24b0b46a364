"""Two jobs whose memory does not fit the node together take turns: what one lends is leased, recalled, and back."""

from __future__ import annotations

import pytest

from tests.e2e.running import JsonObject, RunningStack

pytestmark = [pytest.mark.e2e, pytest.mark.isolation, pytest.mark.timeout(600)]

LOW_MIB = 100
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
import threading, tidegate
job = tidegate.init()
recalls = entered = 0
recalled = threading.Event()
job.on_hand_back(lambda seconds_left: recalled.set())
while recalls < {RECALLS}:
    with job.phase("learning"):
        entered += 1
        memory = bytearray(b"x") * ({USED_MIB} << 20)
        recalled.wait()
        recalled.clear()
        recalls += 1
        del memory
job.finish({{"recalls": recalls, "entered": entered}})
"""


STUBBORN = f"""
import time, tidegate
job = tidegate.init()
if checkpoint := job.latest_checkpoint():
    job.finish({{"resumed_at": checkpoint.load("state")["state"]["step"]}})
    raise SystemExit
step = 0
with job.phase("learning"):
    memory = bytearray(b"x") * ({USED_MIB} << 20)
    while not job.should_stop():
        step += 1
        job.report({{"recalled": float(job.should_hand_back())}}, step=step)
        time.sleep(0.05)
    job.save(state={{"step": step}}, step=step)
    job.exit_suspended()
"""


def memory_mib(stack: RunningStack) -> int:
    """Return how much memory the only node has."""
    (node,) = stack.client.nodes()
    return int(node["capacity"]["memory_mib"])


def high_mib(stack: RunningStack) -> int:
    """Return what the high phase of either job is guaranteed: more than half of the node, so that they take turns."""
    return memory_mib(stack) * 3 // 5


def submit(stack: RunningStack, name: str, script: str, **more: object) -> str:
    phases = {"default": LOW_MIB, "learning": high_mib(stack)}
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


def test_an_owner_and_a_borrower_take_turns_with_memory(stack: RunningStack) -> None:
    assert LOW_MIB + high_mib(stack) < memory_mib(stack) < 2 * high_mib(stack)
    owner = submit(stack, "owner", OWNER)
    borrower = submit(stack, "borrower", BORROWER, borrows=True)
    stack.until(lambda: stack.events("HandBackRequested", job=borrower), "the first recall")
    stack.kill("executor")  # asks and answers outlive it
    (ended,) = stack.completed(borrower)
    assert ended["result"] == {"recalls": RECALLS, "entered": RECALLS}
    stack.client.cancel(owner)
    stack.until(lambda: stack.client.job(owner)["state"] == "cancelled", "the owner ended")

    asked = stack.events("PhaseRequested", job=borrower)
    assert [entry.data["phase"] for entry in asked if entry.data["phase"]].count("learning") >= RECALLS
    granted = [entry for entry in stack.events("QuotaChanged", job=borrower) if entry.data.get("phase")]
    assert [entry.data["phase"] for entry in granted] == ["learning"] * RECALLS
    assert all(entry.data["leased"]["memory_mib"] > 0 for entry in granted)
    recalled = stack.events("HandBackRequested", job=borrower)
    assert [entry.data["for_job"] for entry in recalled] == [owner] * RECALLS
    for job in (owner, borrower):
        assert stack.events("PreemptRequested", job=job) == []
        assert [entry.data.get("oom", False) for entry in stack.events("SandboxExited", job=job)] == [False]
        assert_entered_when_it_could(stack, job)
    assert_never_beyond(stack, {owner, borrower})
    stack.verify()


def test_who_does_not_hand_back_in_time_saves_and_leaves_and_comes_back(stack: RunningStack) -> None:
    owner = submit(stack, "owner", OWNER)
    stubborn = submit(stack, "stubborn", STUBBORN, borrows=True, preemption={"hand_back_seconds": 1})
    (ended,) = stack.completed(stubborn)
    stack.client.cancel(owner)
    stack.until(lambda: stack.client.job(owner)["state"] == "cancelled", "the owner ended")

    (recalled,) = stack.events("HandBackRequested", job=stubborn)
    (asked,) = stack.events("PreemptRequested", job=stubborn)
    assert asked.at_ns >= recalled.data["deadline_ns"] >= recalled.at_ns + 1_000_000_000
    (suspended,) = stack.events("JobSuspended", job=stubborn)
    assert (suspended.data["acknowledged"], suspended.data["lost_steps"]) == (True, 0)
    assert ended["result"] == {"resumed_at": suspended.data["step"]}
    assert stack.events("PreemptRequested", job=owner) == []
    left = next(entry for entry in stack.events("SandboxExited", job=stubborn) if entry.attempt == 1)
    waited = next(entry for entry in stack.events("PhaseChanged", job=owner) if entry.seq > left.seq)
    assert waited.data["phase"] == "learning", "whom it was recalled for"
    assert_never_beyond(stack, {owner, stubborn})
    stack.verify()


def assert_entered_when_it_could(stack: RunningStack, job: str) -> None:
    """Each time the job entered its phase it had asked, was granted it, and the kernel held the limits for it."""
    asked = granted = False
    held_mib = entered = 0
    wanted_mib = high_mib(stack)
    for entry in stack.events("PhaseRequested", "QuotaChanged", "QuotaApplied", "PhaseChanged", job=job):
        if entry.kind == "PhaseRequested":
            asked = entry.data["phase"] == "learning"
        elif entry.kind == "QuotaChanged":
            granted = asked and entry.data.get("phase") == "learning"
        elif entry.kind == "QuotaApplied":
            held_mib = entry.data["quotas"][0]["memory_mib"]
        elif entry.data["phase"] == "learning":
            assert (asked, granted) == (True, True), stack.story()
            assert held_mib >= wanted_mib, stack.story()
            asked = granted = False
            entered += 1
    assert entered >= RECALLS


def assert_never_beyond(stack: RunningStack, jobs: set[str]) -> None:
    """The limits that the kernel held, as the journal tells of them, always fitted the node together."""
    held: dict[str, int] = {}
    most_mib = memory_mib(stack)
    for entry in stack.events("QuotaApplied", "SandboxExited"):
        if entry.job_id in jobs:
            gone = entry.kind == "SandboxExited"
            held[entry.job_id] = 0 if gone else sum(quota["memory_mib"] for quota in entry.data["quotas"])
            assert sum(held.values()) <= most_mib, stack.story()
    assert held.keys() == jobs
