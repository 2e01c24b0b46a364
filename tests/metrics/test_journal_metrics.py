"""The journal in numbers: it agrees with the scheduler on who waits and who holds what, and counts what was lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from tidegate_events import events as e
from tidegate_events.frame import Frame, Writer
from tidegate_events.journal.base import Recorded
from tidegate_events.resources import GpuDevice, Resources
from tidegate_events.subjects import DECISION, fact
from tidegate_metrics.job_track import JobTrack
from tidegate_metrics.journal_metrics import JournalMetrics

from tests.gateway.test_parity import ACTIONS, Both
from tests.support.cluster import spec

SECOND = 1_000_000_000
STAGES = {"pending": "waiting", "suspended": "waiting"}


class Three(Both):
    """The scheduler's history, folded for metrics as well."""

    def __init__(self) -> None:
        self.metrics = JournalMetrics()
        super().__init__()

    def write(self, service: str, instance: str, *events: Any) -> None:
        super().write(service, instance, *events)
        name = f"{service}/{instance}"
        subject = DECISION if service == "scheduler" else fact(service, instance)
        frame = Frame(Writer(service, instance, 1, self.seqs[name]), events)  # type: ignore[arg-type]
        self.metrics.apply(Recorded(self.metrics.seq + 1, subject, frame))

    def compare(self) -> None:
        assert set(self.metrics.jobs) == set(self.state.jobs)
        for name, job in self.state.jobs.items():
            seen = self.metrics.jobs[name]
            assert (seen.revision, seen.attempt) == (job.revision, job.attempt)
            assert seen.stage == STAGES.get(job.stage, job.stage)
            assert [(m.rank, m.node, m.active) for m in seen.members] == [
                (m.rank, m.node, m.active) for m in job.members
            ]
        assert sum(self.metrics.ended.values()) == len(self.state.finished)
        assert {name: node.status for name, node in self.metrics.nodes.items()} == {
            name: node.status for name, node in self.state.nodes.items()
        }


@settings(max_examples=150, deadline=None)
@given(ACTIONS)
def test_the_fold_agrees_with_the_scheduler(actions: list[tuple[str, int, str]]) -> None:
    three = Three()
    for action in (("submit", 1, ""), ("pass", 0, ""), *actions):
        three.act(*action)
        three.compare()
    waiting = [job for job in three.state.jobs.values() if job.waiting]
    assert sum(three.metrics.waiting().values()) == len(waiting)
    assert sum(three.metrics.running().values()) == len(three.state.jobs) - len(waiting)
    preempted = sum(job.preemptions for job in three.state.jobs.values())
    assert sum(three.metrics.preemptions.values()) >= preempted


class Story:
    """One job on one node with four GPUs, told second by second."""

    def __init__(self) -> None:
        self.metrics = JournalMetrics()
        self._seqs: dict[str, int] = {}
        gpus = tuple(GpuDevice(index, f"u{index}", "T", 8192) for index in range(4))
        capacity = Resources(4000, 8192, 4, 8192)
        joined = e.NodeJoined(
            id="join", at_ns=0, node="n1", incarnation=1, capacity=capacity, levels=("trusted",), gpus=gpus
        )
        self.put("node", "n1", joined)
        job = spec(gpus=1, target_steps_per_second=5)
        self.put("gateway", "g1", e.JobSubmitted(**self.about(10), spec=job))

    def about(self, second: float) -> dict[str, Any]:
        at_ns = int(second * SECOND)
        return {"id": f"e{len(self._seqs)}-{at_ns}", "at_ns": at_ns, "tenant": "lab-a", "job": "j1"}

    @property
    def job(self) -> JobTrack:
        return self.metrics.jobs["j1"]

    def put(self, service: str, instance: str, event: e.AnyEvent) -> None:
        name = f"{service}/{instance}"
        self._seqs[name] = self._seqs.get(name, 0) + 1
        subject = DECISION if service == "scheduler" else fact(service, instance)
        frame = Frame(Writer(service, instance, 1, self._seqs[name]), (event,))  # type: ignore[arg-type]
        self.metrics.apply(Recorded(self.metrics.seq + 1, subject, frame))

    def decide(self, kind: Any, second: float, **more: Any) -> None:
        self.put("scheduler", "s1", kind(**self.about(second), revision=self.job.revision, **more))

    def seen(self, kind: Any, second: float, **more: Any) -> None:
        about = {"attempt": self.job.attempt, "rank": 0, "node": "n1"}
        self.put("node", "n1", kind(**self.about(second), **{**about, **more}))

    def place(self, second: float, gpu_indices: tuple[int, ...] = (0, 1)) -> None:
        member = e.MemberPlacement(rank=0, node="n1", incarnation=1, quotas=(), gpu_indices=gpu_indices)
        self.decide(e.JobPlaced, second, attempt=self.job.attempt + 1, members=(member,))
        self.seen(e.SandboxStarted, second + 1, level="trusted")
        self.decide(e.JobStarted, second + 1, attempt=self.job.attempt)

    def leave(self, asked: float, left: float, *, acknowledged: bool) -> None:
        about = {"attempt": self.job.attempt, "grace_seconds": 10, "deadline_ns": 0, "for_job": "j9"}
        self.decide(e.PreemptRequested, asked, **about)
        self.seen(e.SandboxExited, left, outcome="suspended" if acknowledged else "stopped")
        self.decide(e.JobSuspended, left, attempt=self.job.attempt, acknowledged=acknowledged)


def test_waiting_gpus_and_preemption_of_one_job() -> None:
    story = Story()
    metrics = story.metrics
    assert metrics.gpus() == {"capacity": 4, "allocated": 0, "lent": 0}
    assert metrics.oldest_waiting_ns() == {"lab-a": 10 * SECOND}
    story.place(40)
    assert metrics.queue_wait["lab-a"].sum == 30
    assert metrics.oldest_waiting_ns() == {}
    assert metrics.gpus() == {"capacity": 4, "allocated": 2, "lent": 1}
    story.leave(100, 104, acknowledged=True)
    assert (metrics.preemptions["lab-a"], metrics.preemption_latency["lab-a"].sum) == (1, 4)
    assert metrics.lost_gpu_ns["lab-a"] == 0, "it saved before it left"
    assert metrics.gpus()["allocated"] == 0
    assert metrics.oldest_waiting_ns() == {"lab-a": 104 * SECOND}


@pytest.mark.parametrize(("saved", "lost_seconds"), [(None, 104 - 41), (90, 104 - 90)])
def test_gpu_time_since_the_last_checkpoint_is_lost_without_a_save(saved: int | None, lost_seconds: int) -> None:
    story = Story()
    story.place(40)
    if saved is not None:
        ref = e.CheckpointRef(id="c", step=1, attempt=1, directory="d")
        story.seen(e.CheckpointSaved, saved, checkpoint=ref)
    story.leave(100, 104, acknowledged=False)
    assert story.metrics.lost_gpu_ns["lab-a"] == 2 * lost_seconds * SECOND


def test_a_rate_that_is_low_belongs_to_its_attempt() -> None:
    story = Story()
    story.place(40)
    rates = {"attempt": 1, "rate_millis": 1, "target_millis": 2, "window_seconds": 10}
    story.put("metrics", "m1", e.StepRateLow(**story.about(60), **rates))
    assert story.job.rate_low
    story.put("metrics", "m1", e.StepRateRecovered(**story.about(70), **{**rates, "attempt": 2}))
    assert story.job.rate_low, "another attempt is not this one"
    story.leave(100, 104, acknowledged=True)
    story.place(120)
    assert not story.job.rate_low


def test_a_missing_frame_stops_the_fold() -> None:
    story = Story()
    frame = Frame(Writer("gateway", "g1", 1, 99), (e.CancelRequested(**story.about(1)),))
    with pytest.raises(ValueError, match="no gaps"):
        story.metrics.apply(Recorded(99, fact("gateway", "g1"), frame))


def test_a_late_duplicate_changes_nothing() -> None:
    story = Story()
    story.place(40)
    story.leave(100, 104, acknowledged=True)
    duplicate = Frame(
        Writer("scheduler", "s1", 1, 3),
        (
            e.PreemptRequested(
                **story.about(100), revision=story.job.revision, attempt=1, grace_seconds=1, deadline_ns=0, for_job="x"
            ),
        ),
    )
    story.metrics.apply(Recorded(story.metrics.seq + 1, DECISION, duplicate))
    assert story.metrics.preemptions["lab-a"] == 1
