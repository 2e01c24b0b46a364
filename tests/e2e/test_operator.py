"""What an operator sees while what shows it is killed during the main job: nothing is missed, or told twice.

One stack for all of it: each test runs a main job of its own, and the last ones look at what all of them left behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e import read_models
from tests.e2e.running import HIGH_UPDATES, UPDATES, JsonObject, RunningStack
from tests.support import otlp
from tests.support.otlp import OtlpReceiver

pytestmark = [pytest.mark.e2e, pytest.mark.isolation, pytest.mark.timeout(600)]

HTTP_SECONDS_MAX = 10.0
# A step costs 4 ms of CPU time: the quota of the second phase allows 25 steps a second, that of the others 225.
TARGET_STEPS_PER_SECOND = 50
SQUEEZED = Path(__file__).parent / "squeezed"


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    """Yield a real OTLP receiver."""
    taking = OtlpReceiver()
    try:
        yield taking
    finally:
        taking.close()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, receiver: OtlpReceiver) -> Iterator[RunningStack]:
    """Yield the stack that all tests here share; afterwards nothing of it may be left."""
    root = tmp_path_factory.mktemp("operator") / "home"
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "TIDEGATE_RATE_WINDOW_SECONDS": "2"}
    running = RunningStack.start(root, environment=environment)
    try:
        yield running
    finally:
        left = running.end()
    assert left == []


def assert_ended_well(stack: RunningStack, low: str, high: str) -> None:
    """Both jobs ended as if nothing had happened, once, and the read models tell all of it."""
    ended_low, ended_high = stack.completed(low, high)
    assert ended_low["result"]["updates"] == UPDATES
    assert ended_high["result"]["updates"] == HIGH_UPDATES
    assert (ended_low["preemptions"], ended_low["lost_steps"]) == (1, 0)
    stack.assert_nothing_ran_twice(low, high)
    read_models.assert_whole(stack, low, high)
    stack.verify()


def test_what_shows_it_is_killed(stack: RunningStack) -> None:
    """Each of it during the same main job: when the low one is to leave, when it has left, when the high one runs."""
    low, high = stack.submit_main_job()
    stack.until(lambda: stack.events("PreemptRequested", job=low), "the preemption")
    before = counter(stack, "tidegate_preemptions_total")
    stack.kill("gateway")
    stack.until(lambda: stack.events("JobSuspended", job=low), "the suspension")
    stack.kill("projector")
    stack.until(lambda: stack.events("JobStarted", job=high), "the high job's start")
    stack.kill("metrics")
    assert_ended_well(stack, low, high)
    stack.until(lambda: counter(stack, "tidegate_preemptions_total") >= before, "the metrics of before")
    preempted = len(stack.events("PreemptRequested"))
    stack.until(lambda: counter(stack, "tidegate_preemptions_total") == preempted, "every preemption counted once")


def test_the_database_is_killed(stack: RunningStack) -> None:
    """It comes back by its own log; until then jobs run on, are submitted, and are seen."""
    low, high = stack.submit_main_job()
    stack.until(lambda: stack.events("PreemptRequested", job=low), "the preemption")
    restarts = {name: service.restarts for name, service in stack.record.services.items()}
    stack.kill("postgres")
    assert_ended_well(stack, low, high)
    after = {name: service.restarts for name, service in stack.record.services.items()}
    assert after == {**restarts, "postgres": restarts["postgres"] + 1}, "the others waited for it"


@pytest.mark.long
def test_a_squeezed_job_is_reported_and_then_recovers(stack: RunningStack) -> None:
    """The quota of its second phase is below what its declared rate costs; with the first one's it keeps it."""
    resources = {
        "default": {"minimum": {"cpu_millis": 900, "memory_mib": 128}},
        "learning": {"minimum": {"cpu_millis": 100, "memory_mib": 128}, "maximum": {"cpu_millis": 100}},
    }
    job = stack.client.submit(
        {
            "name": "squeezed",
            "image": "host",
            "isolation": stack.record.level,
            "command": ["python", "worker.py"],
            "resources": resources,
            "target_steps_per_second": TARGET_STEPS_PER_SECOND,
            "time_limit_seconds": 300,
        },
        workdir=SQUEEZED,
    ).job_id
    stack.until(lambda: stack.events("StepRateLow", job=job), "the step rate found too low")
    (low,) = stack.events("StepRateLow", job=job)
    assert low.data["target_millis"] == TARGET_STEPS_PER_SECOND * 1000
    assert 0 < low.data["rate_millis"] < low.data["target_millis"]
    squeezed_at = [entry for entry in stack.events("PhaseChanged", job=job) if entry.data["phase"] == "learning"]
    assert (low.seq, low.index) > (squeezed_at[0].seq, squeezed_at[0].index)
    stack.until(lambda: stack.events("StepRateRecovered", job=job), "the step rate found well again")
    stack.client.cancel(job)


def test_traces_are_the_same_through_the_api_and_the_receiver(stack: RunningStack, receiver: OtlpReceiver) -> None:
    """Of every job that ended in this stack, whatever was killed meanwhile."""
    jobs = [job for job in stack.client.jobs() if job["state"] == "completed"] or [_one_job(stack)]
    for job in jobs:
        trace = whole_trace(stack, job["trace_id"])
        stack.until(lambda: len(receiver.of_trace(job["trace_id"])) >= len(trace), "every span received", 30)  # noqa: B023
        assert receiver.of_trace(job["trace_id"]) == trace
        roots = [span for span in trace.values() if not span["parent_id"]]
        assert [root["name"] for root in roots] == ["submit"]
        assert all(span["parent_id"] in trace for span in trace.values() if span not in roots)


def _one_job(stack: RunningStack) -> JsonObject:
    return stack.completed(stack.submit("job-high.json", HIGH_UPDATES))[0]


def whole_trace(stack: RunningStack, trace_id: str) -> dict[str, otlp.Comparable]:
    """Return a trace by its spans' ids, once the last one is there."""
    found: dict[str, otlp.Comparable] = {}

    def has_ended() -> bool:
        answer = httpx.get(f"{stack.record.gateway_url}/api/v3/traces/{trace_id}", timeout=HTTP_SECONDS_MAX)
        if answer.status_code != httpx.codes.OK:
            return False
        found.update({span["span_id"]: span for span in otlp.from_json(answer.json())})
        return any(span["name"] == "end" for span in found.values())

    stack.until(has_ended, "the trace's end", 30)
    return found


def counter(stack: RunningStack, name: str) -> float:
    """Return the sum of a metric over its labels; -1 while the metrics service is away."""
    try:
        text = httpx.get(stack.record.metrics_url, timeout=HTTP_SECONDS_MAX).text
    except httpx.TransportError:
        return -1
    lines = [line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
    return sum(float(line.rpartition(" ")[2]) for line in lines)
